{{/*
Settings as environment variables, of the names docs/settings.md lists.
What is null or an empty text is left to the program; what `controller.env` sets wins.
*/}}
{{- define "karpenter.env" -}}
{{- include "karpenter.refuseHiddenSettings" . -}}
{{- $settings := .Values.settings -}}
{{- $plain := list
  (list "LOG_LEVEL" .Values.logLevel)
  (list "LOG_OUTPUT_PATHS" (join "," .Values.logOutputPaths))
  (list "LOG_ERROR_OUTPUT_PATHS" (join "," .Values.logErrorOutputPaths))
  (list "METRICS_PORT" .Values.controller.metrics.port)
  (list "HEALTH_PROBE_PORT" .Values.controller.healthProbe.port)
  (list "BATCH_MAX_DURATION" $settings.batchMaxDuration)
  (list "BATCH_IDLE_DURATION" $settings.batchIdleDuration)
  (list "OTEL_EXPORTER_OTLP_ENDPOINT" $settings.otlpEndpoint)
  (list "PREFERENCE_POLICY" $settings.preferencePolicy)
  (list "MIN_VALUES_POLICY" $settings.minValuesPolicy)
  (list "SCHEDULER_CONFIG" $settings.schedulerConfig)
  (list "FEATURE_GATES" (include "karpenter.featureGates" .))
  (list "KUBE_CLIENT_QPS" $settings.kubeClientQPS)
  (list "KUBE_CLIENT_BURST" $settings.kubeClientBurst)
  (list "ENABLE_PROFILING" $settings.enableProfiling)
  (list "DISABLE_CONTROLLER_WARMUP" $settings.disableControllerWarmup)
  (list "DISABLE_LEADER_ELECTION" $settings.disableLeaderElection)
  (list "DISABLE_CLUSTER_STATE_OBSERVABILITY" $settings.disableClusterStateObservability)
  (list "LEADER_ELECTION_NAME" $settings.leaderElectionName)
  (list "LEADER_ELECTION_NAMESPACE" $settings.leaderElectionNamespace)
  (list "IGNORE_DRA_REQUESTS" $settings.ignoreDRARequests)
  (list "LEGACY_NODE_REPAIR" $settings.legacyNodeRepair)
  (list "CLUSTER_NAME" $settings.clusterName)
-}}
{{- if has "cluster-api" .Values.providers -}}
{{- $plain = concat $plain (list
  (list "CLUSTER_API_URL" .Values.clusterAPI.url)
  (list "CLUSTER_API_CERTIFICATE_AUTHORITY_DATA" .Values.clusterAPI.certificateAuthorityData)
  (list "CLUSTER_API_SKIP_TLS_VERIFY" (ternary true nil .Values.clusterAPI.skipTLSVerify))
  (list "CLUSTER_API_IN_MANAGEMENT_CLUSTER" (ternary true nil .Values.clusterAPI.inManagementCluster))
  (list "CLUSTER_NAMESPACE" .Values.clusterAPI.clusterNamespace)
  (list "CLUSTER_API_DEFAULT_ARCH" .Values.clusterAPI.defaultArch)
  (list "VM_MEMORY_OVERHEAD_PERCENT" .Values.clusterAPI.vmMemoryOverheadPercent)
  (list "CLUSTER_API_SYNC_LABELS" (join "," .Values.clusterAPI.syncLabels))
  (list "CLUSTER_API_QPS" .Values.clusterAPI.qps)
  (list "CLUSTER_API_BURST" .Values.clusterAPI.burst)
  (list "CLUSTER_API_MAX_AGE" .Values.clusterAPI.maxAge)
  (list "CLUSTER_API_BATCH_MAX_DURATION" .Values.clusterAPI.batchMaxDuration)
  (list "CLUSTER_API_BATCH_IDLE_DURATION" .Values.clusterAPI.batchIdleDuration)
) -}}
{{- if include "karpenter.clusterAPIKubeconfig" . -}}
{{- $plain = append $plain (list "CLUSTER_API_KUBECONFIG" "/etc/karpenter/cluster-api/kubeconfig") -}}
{{- end -}}
{{- end -}}
{{- if has "cloudstack" .Values.providers -}}
{{- $named := or $settings.clusterName .Values.controller.envFrom -}}
{{- range .Values.controller.env -}}{{- if eq .name "CLUSTER_NAME" -}}{{- $named = true -}}{{- end -}}{{- end -}}
{{- if not $named -}}
{{- fail "settings.clusterName: the provider cloudstack tells this cluster's machines from those of others by it; name the cluster" -}}
{{- end -}}
{{- $plain = concat $plain (list
  (list "CLOUDSTACK_VERIFY_SSL" .Values.cloudstack.verifySSL)
  (list "CLOUDSTACK_CREDENTIALS_DIR" (ternary "/etc/karpenter/cloudstack" "" (ne (include "karpenter.cloudstackKeys" .) "")))
  (list "CLOUDSTACK_CA_FILE" (ternary "/etc/karpenter/cloudstack-ca/ca.crt" "" (ne .Values.cloudstack.caConfigMap "")))
  (list "CLOUDSTACK_PROXY" .Values.cloudstack.proxy)
  (list "CLOUDSTACK_NO_PROXY" .Values.cloudstack.noProxy)
) -}}
{{- if include "karpenter.cloudstackWebhookEnabled" . -}}
{{- $plain = concat $plain (list
  (list "CLOUDSTACK_WEBHOOK_PORT" .Values.cloudstack.webhook.port)
  (list "CLOUDSTACK_WEBHOOK_NAME" (include "karpenter.cloudstackWebhook" .))
) -}}
{{- end -}}
{{- range $name, $value := .Values.cloudstack.settings -}}
{{- if has $name (list "CLOUDSTACK_WEBHOOK_PORT" "CLOUDSTACK_WEBHOOK_NAME") -}}
{{- fail (printf "cloudstack.settings: %s is not enough, more in the chart follows from it; set cloudstack.webhook instead" $name) -}}
{{- end -}}
{{- $plain = append $plain (list $name $value) -}}
{{- end -}}
{{- end -}}
{{- if and (has "kwok" .Values.providers) .Values.kwok.instanceTypes -}}
{{- $plain = append $plain (list "INSTANCE_TYPES_FILE_PATH" "/etc/karpenter/kwok/instance-types.json") -}}
{{- end -}}
{{- $env := list -}}
{{- range $plain -}}
{{- $value := index . 1 -}}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) -}}
{{- /* Whole numbers come as fractions, and large ones would be written as 1e+06. */ -}}
{{- if kindIs "float64" $value -}}{{- if eq $value (floor $value) -}}{{- $value = int64 $value -}}{{- end -}}{{- end -}}
{{- $env = append $env (dict "name" (index . 0) "value" (toString $value)) -}}
{{- end -}}
{{- end -}}
{{- $container := .Values.controller.containerName -}}
{{- $env = concat $env (list
  (dict "name" "SYSTEM_NAMESPACE" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.namespace")))
  (dict "name" "MEMORY_LIMIT" "valueFrom" (dict "resourceFieldRef" (dict "containerName" $container "divisor" "0" "resource" "limits.memory")))
  (dict "name" "CPU_REQUESTS" "valueFrom" (dict "resourceFieldRef" (dict "containerName" $container "divisor" "1m" "resource" "requests.cpu")))
) -}}
{{- $secret := dict -}}
{{- if and (has "cluster-api" .Values.providers) .Values.clusterAPI.url (or .Values.clusterAPI.token .Values.clusterAPI.existingSecret) -}}
{{- $secret = dict "name" (include "karpenter.secretName" (dict "root" . "provider" "cluster-api" "values" .Values.clusterAPI)) -}}
{{- $env = append $env (dict "name" "CLUSTER_API_TOKEN" "valueFrom" (dict "secretKeyRef" (merge (dict "key" "token") $secret))) -}}
{{- end -}}
{{- $set := list -}}
{{- range .Values.controller.env -}}{{- $set = append $set .name -}}{{- end -}}
{{- $rest := list -}}
{{- range $env -}}{{- if not (has .name $set) -}}{{- $rest = append $rest . -}}{{- end -}}{{- end -}}
{{- concat $rest .Values.controller.env | toYaml -}}
{{- end -}}

{{/* Refuses settings that rights, ports or replicas follow where the chart does not see them: beside their values. */}}
{{- define "karpenter.refuseHiddenSettings" -}}
{{- $values := dict
  "FEATURE_GATES" "settings.featureGates"
  "SCHEDULER_CONFIG" "settings.schedulerConfig"
  "DISABLE_LEADER_ELECTION" "settings.disableLeaderElection"
  "LEADER_ELECTION_NAME" "settings.leaderElectionName"
  "LEADER_ELECTION_NAMESPACE" "settings.leaderElectionNamespace"
  "METRICS_PORT" "controller.metrics.port"
  "HEALTH_PROBE_PORT" "controller.healthProbe.port"
  "CLOUDSTACK_CREDENTIALS_SECRET" "cloudstack.settings"
  "CLOUDSTACK_WEBHOOK_PORT" "cloudstack.webhook"
  "CLOUDSTACK_WEBHOOK_NAME" "cloudstack.webhook"
-}}
{{- range .Values.controller.env -}}
{{- if hasKey $values .name -}}
{{- fail (printf "controller.env: %s is not enough, more in the chart follows from it; set %s instead" .name (get $values .name)) -}}
{{- end -}}
{{- end -}}
{{- range .Values.controller.extraArgs -}}
{{- $flag := regexFind "^--?[a-z-]+" . -}}
{{- $name := $flag | trimPrefix "-" | trimPrefix "-" | replace "-" "_" | upper -}}
{{- if hasKey $values $name -}}
{{- fail (printf "controller.extraArgs: %s is not enough, more in the chart follows from it; set %s instead" $flag (get $values $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secret with CloudStack's keys. It is mounted: keys of the environment would be those of the start until the end. */}}
{{- define "karpenter.cloudstackKeys" -}}
{{- with .Values.cloudstack.credentialsSecret -}}
{{- . -}}
{{- else -}}
{{- if not (include "karpenter.cloudstackWatchedSecret" .) -}}
{{- include "karpenter.secretName" (dict "root" . "provider" "cloudstack" "values" .Values.cloudstack) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A Secret with CloudStack's keys that is read and watched instead of mounted, as NAMESPACE/NAME. */}}
{{- define "karpenter.cloudstackWatchedSecret" -}}
{{- with get (default (dict) .Values.cloudstack.settings) "CLOUDSTACK_CREDENTIALS_SECRET" -}}
{{- if not (regexMatch "^[^/]+/[^/]+$" .) -}}
{{- fail "cloudstack.settings: CLOUDSTACK_CREDENTIALS_SECRET names a Secret as NAMESPACE/NAME" -}}
{{- end -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* Files that settings point to. */}}
{{- define "karpenter.volumes" -}}
{{- $volumes := list -}}
{{- if and (has "kwok" .Values.providers) .Values.kwok.instanceTypes -}}
{{- $volumes = append $volumes (dict "name" "kwok" "configMap" (dict "name" (printf "%s-kwok" (include "karpenter.fullname" .)))) -}}
{{- end -}}
{{- if and (has "cluster-api" .Values.providers) (include "karpenter.clusterAPIKubeconfig" .) -}}
{{- $secret := include "karpenter.secretName" (dict "root" . "provider" "cluster-api" "values" .Values.clusterAPI) -}}
{{- $volumes = append $volumes (dict "name" "cluster-api" "secret" (dict "secretName" $secret "items" (list (dict "key" "kubeconfig" "path" "kubeconfig")))) -}}
{{- end -}}
{{- if has "cloudstack" .Values.providers -}}
{{- with include "karpenter.cloudstackKeys" . -}}
{{- $volumes = append $volumes (dict "name" "cloudstack" "secret" (dict "secretName" .)) -}}
{{- end -}}
{{- with .Values.cloudstack.caConfigMap -}}
{{- $volumes = append $volumes (dict "name" "cloudstack-ca" "configMap" (dict "name" .)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $volumes -}}
{{- end -}}

{{- define "karpenter.volumeMounts" -}}
{{- $mounts := list -}}
{{- range include "karpenter.volumes" . | fromYamlArray -}}
{{- $mounts = append $mounts (dict "name" .name "mountPath" (printf "/etc/karpenter/%s" .name) "readOnly" true) -}}
{{- end -}}
{{- toYaml $mounts -}}
{{- end -}}
