{{- define "karpenter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of all objects: the release, with the chart's name unless it is in there. */}}
{{- define "karpenter.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $joined := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $joined .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "karpenter.selectorLabels" -}}
app.kubernetes.io/name: {{ include "karpenter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "karpenter.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "karpenter.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.additionalLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels and annotations of an object. Takes the root and, if the object has some of its own, `labels` and `annotations`. */}}
{{- define "karpenter.metadata" -}}
labels:
  {{- include "karpenter.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default (dict) .annotations) .root.Values.additionalAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "karpenter.serviceAccountName" -}}
{{- $made := ternary (include "karpenter.fullname" .) "default" .Values.serviceAccount.create -}}
{{- default $made .Values.serviceAccount.name -}}
{{- end -}}

{{- define "karpenter.image" -}}
{{- with .Values.controller.image -}}
{{- printf "%s:%s" .repository (default (printf "v%s" $.Chart.AppVersion) .tag) -}}
{{- with .digest }}@{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The name of the lease and the namespace it is in. In a management cluster each Karpenter has its own, as the program has it. */}}
{{- define "karpenter.leaseName" -}}
{{- $name := default "karpenter-leader-election" .Values.settings.leaderElectionName -}}
{{- with .Values.clusterAPI -}}
{{- if and (has "cluster-api" $.Values.providers) .inManagementCluster (eq $name "karpenter-leader-election") -}}
{{- $name = printf "%s-%s-%s" $name .clusterNamespace $.Values.settings.clusterName -}}
{{- end -}}
{{- end -}}
{{- $name -}}
{{- end -}}
{{- define "karpenter.leaseNamespace" -}}
{{- default .Release.Namespace .Values.settings.leaderElectionNamespace -}}
{{- end -}}

{{/* NodeRepair=false,… of all gates. */}}
{{- define "karpenter.featureGates" -}}
{{- $gates := list -}}
{{- range $name, $on := .Values.settings.featureGates -}}
{{- $gates = append $gates (printf "%s%s=%t" (substr 0 1 $name | upper) (substr 1 -1 $name) $on) -}}
{{- end -}}
{{- join "," $gates -}}
{{- end -}}

{{/* The Secret of a provider: the one that exists, or ours. Takes the root and the provider's name and values. */}}
{{- define "karpenter.secretName" -}}
{{- default (printf "%s-%s" (include "karpenter.fullname" .root) .provider) .values.existingSecret -}}
{{- end -}}

{{/* Whether the management cluster is found by a kubeconfig: one is given, or a Secret without a URL. */}}
{{- define "karpenter.clusterAPIKubeconfig" -}}
{{- with .Values.clusterAPI -}}
{{- if or .kubeconfig (and .existingSecret (not .url)) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether the cluster the chart is installed in is the management cluster. */}}
{{- define "karpenter.clusterAPIJoined" -}}
{{- if not (or .Values.clusterAPI.url (include "karpenter.clusterAPIKubeconfig" .)) -}}true{{- end -}}
{{- end -}}

{{/* What Karpenter may do in the management cluster. */}}
{{- define "karpenter.clusterAPIRules" -}}
- apiGroups: ["cluster.x-k8s.io"]
  resources: ["machines", "machinedeployments", "machinesets", "clusters"]
  verbs: ["get", "list", "watch"]
- apiGroups: ["cluster.x-k8s.io"]
  resources: ["machines", "machinedeployments", "machinesets"]
  verbs: ["patch"]
# Where a lower number of replicas would not name the Machine that is to go; and in Machine mode.
- apiGroups: ["cluster.x-k8s.io"]
  resources: ["machines"]
  verbs: [{{ if .Values.clusterAPI.machineMode }}"create", {{ end }}"delete"]
- apiGroups: ["cluster.x-k8s.io"]
  resources: ["machinedeployments/scale", "machinesets/scale"]
  verbs: ["patch"]
# Templates tell what a node has, and machines their ids.
- apiGroups: ["infrastructure.cluster.x-k8s.io"]
  resources: ["*"]
  verbs: ["get"]
{{- if .Values.clusterAPI.machineMode }}
# Whether its Machines are up to date is for Karpenter to say.
- apiGroups: ["cluster.x-k8s.io"]
  resources: ["machines/status"]
  verbs: ["patch"]
# Machine mode clones templates, looks for clones that nobody needs, and compares versions with the control plane's.
- apiGroups: ["bootstrap.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"]
  resources: ["*"]
  verbs: ["get"]
- apiGroups: ["infrastructure.cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io"]
  resources: ["*"]
  verbs: ["list", "create", "delete"]
{{- end }}
{{- end -}}

{{/* What of the management cluster is in no namespace: which version of a template keeps to Cluster API's contract. */}}
{{- define "karpenter.clusterAPIDefinitions" -}}
- apiGroups: ["apiextensions.k8s.io"]
  resources: ["customresourcedefinitions"]
  verbs: ["get"]
{{- end -}}

{{/* Whether there is a webhook of CloudStack. Values of an earlier chart (`--reuse-values`) say nothing of it. */}}
{{- define "karpenter.cloudstackWebhookEnabled" -}}
{{- if and (has "cloudstack" .Values.providers) (default (dict) .Values.cloudstack.webhook).enabled -}}true{{- end -}}
{{- end -}}

{{/* The name of whatever belongs to CloudStack's webhook; a Service has no longer one. */}}
{{- define "karpenter.cloudstackWebhook" -}}
{{- printf "%s-cloudstack-webhook" (include "karpenter.fullname" . | trunc 44 | trimSuffix "-") -}}
{{- end -}}

{{/* What its two configurations have in common. Takes the root and `path`. */}}
{{- define "karpenter.cloudstackWebhookTerms" -}}
admissionReviewVersions: ["v1"]
sideEffects: None
failurePolicy: Ignore
timeoutSeconds: {{ .root.Values.cloudstack.webhook.timeoutSeconds }}
clientConfig:
  service:
    name: {{ include "karpenter.cloudstackWebhook" .root }}
    namespace: {{ .root.Release.Namespace }}
    path: {{ .path }}
    port: 443
rules:
  - apiGroups: ["karpenter.k8s.cloudstack"]
    apiVersions: ["v1"]
    resources: ["cloudstacknodeclasses"]
    operations: ["CREATE", "UPDATE"]
    scope: Cluster
{{- end -}}

{{/* The terms of a list as YAML, each with the selector of our pods if it has none. Takes the root and `terms`. */}}
{{- define "karpenter.selectingUs" -}}
{{- $ours := dict "labelSelector" (dict "matchLabels" (include "karpenter.selectorLabels" .root | fromYaml)) -}}
{{- $terms := list -}}
{{- range .terms -}}
{{- if hasKey . "podAffinityTerm" -}}
{{- $terms = append $terms (merge (dict "podAffinityTerm" (merge (dict) .podAffinityTerm $ours)) .) -}}
{{- else -}}
{{- $terms = append $terms (merge (dict) . $ours) -}}
{{- end -}}
{{- end -}}
{{- toYaml $terms -}}
{{- end -}}

{{/* The affinity as YAML, its pod terms selecting our pods where they select none. */}}
{{- define "karpenter.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- range $kind := list "podAffinity" "podAntiAffinity" -}}
{{- range $strength, $terms := default (dict) (index $affinity $kind) -}}
{{- $_ := set (index $affinity $kind) $strength (include "karpenter.selectingUs" (dict "root" $ "terms" $terms) | fromYamlArray) -}}
{{- end -}}
{{- end -}}
{{- toYaml $affinity -}}
{{- end -}}
