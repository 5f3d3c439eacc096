package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
)

type hashRow struct {
	Spec json.RawMessage `json:"spec"`
	Hash string          `json:"hash"`
}

const nodeClassRef = `"nodeClassRef":{"group":"karpenter.kwok.sh","kind":"KWOKNodeClass","name":"default"}`

// hashes takes each part of a template alone, in odd forms, and then random mixtures.
func hashes() []hashRow {
	template := func(metadata, spec string) string {
		if metadata != "" {
			metadata = `"metadata":` + metadata + ","
		}
		if spec != "" {
			spec = "," + spec
		}
		return `{"template":{` + metadata + `"spec":{"requirements":[],` + nodeClassRef + spec + `}}}`
	}
	specs := []string{template("", "")}
	for _, metadata := range []string{
		`{}`, `{"labels":{}}`, `{"annotations":{}}`, `{"labels":{},"annotations":{}}`, `{"labels":{"a":"b"}}`, `{"labels":{"a":""}}`, `{"labels":{"a":"b","c":"d"}}`, `{"labels":{"c":"d","a":"b"}}`,
		`{"labels":{"a":"d","c":"b"}}`, `{"annotations":{"a":"b"}}`, `{"labels":{"a":"b"},"annotations":{"a":"b"}}`, `{"labels":{"ü":"é"}}`, `{"annotations":{"k":"a long value, with spaces and \"quotes\""}}`,
	} {
		specs = append(specs, template(metadata, ""))
	}
	for _, spec := range []string{
		`"taints":[]`, `"startupTaints":[]`, `"taints":null`, `"taints":[{"key":"a","effect":"NoSchedule"}]`, `"taints":[{"key":"a","value":"","effect":"NoSchedule"}]`,
		`"taints":[{"key":"a","value":"b","effect":"NoSchedule"}]`, `"taints":[{"key":"a","value":"b","effect":"NoExecute"},{"key":"c","effect":"NoSchedule"}]`,
		`"taints":[{"key":"c","effect":"NoSchedule"},{"key":"a","value":"b","effect":"NoExecute"}]`, `"taints":[{"key":"a","effect":"NoSchedule"},{"key":"a","effect":"NoSchedule"}]`,
		`"startupTaints":[{"key":"a","effect":"NoSchedule"}]`, `"taints":[{"key":"a","effect":"NoSchedule"}],"startupTaints":[{"key":"a","effect":"NoSchedule"}]`,
		`"taints":[{"key":"a","effect":"NoSchedule","timeAdded":"2024-02-03T04:05:06Z"}]`, `"taints":[{"key":"a","effect":"NoSchedule","timeAdded":"1969-12-31T23:59:59Z"}]`,
		`"taints":[{"key":"a","effect":""}]`, `"taints":[{"key":"","effect":""}]`,
		`"expireAfter":"Never"`, `"expireAfter":"720h"`, `"expireAfter":"30m"`, `"expireAfter":"0s"`, `"expireAfter":"1800s"`, `"expireAfter":"1h30m"`, `"expireAfter":"90m"`,
		`"terminationGracePeriod":"0s"`, `"terminationGracePeriod":"30s"`, `"terminationGracePeriod":"48h"`, `"terminationGracePeriod":"48h","expireAfter":"48h"`,
	} {
		specs = append(specs, template("", spec))
	}
	specs = append(specs,
		// None of these is part of the hash.
		`{"template":{"spec":{"requirements":[{"key":"a","operator":"In","values":["b"]}],`+nodeClassRef+`}}}`,
		`{"weight":10,"limits":{"cpu":"10"},"disruption":{"consolidateAfter":"Never","consolidationPolicy":"WhenEmpty","budgets":[{"nodes":"1"}]},"template":{"spec":{"requirements":[],`+nodeClassRef+`}}}`,
		`{"replicas":3,"template":{"spec":{"requirements":[],`+nodeClassRef+`}}}`,
		`{"template":{"spec":{"requirements":[],"nodeClassRef":{"group":"g","kind":"k","name":"n"}}}}`,
		`{"template":{"spec":{"requirements":[],"nodeClassRef":{"group":"n","kind":"g","name":"k"}}}}`,
		`{"template":{"spec":{"requirements":[],"nodeClassRef":{"group":"","kind":"","name":""}}}}`,
		`{"template":{"spec":{"requirements":[],"nodeClassRef":{"group":"","kind":"k","name":""}}}}`,
	)
	r := rand.New(rand.NewSource(3))
	word := func() string {
		return []string{"a", "b", "team", "env", "prod", "dev", "gpu", "x1", "spot", "zone"}[r.Intn(10)]
	}
	words := func() string {
		pairs := []string{}
		seen := map[string]bool{}
		for n := r.Intn(5); n > 0; n-- {
			if k := word(); !seen[k] {
				seen[k] = true
				pairs = append(pairs, fmt.Sprintf("%q:%q", k, word()))
			}
		}
		return "{" + strings.Join(pairs, ",") + "}"
	}
	taints := func() string {
		list := []string{}
		for n := r.Intn(4); n > 0; n-- {
			list = append(list, fmt.Sprintf(`{"key":%q,"value":%q,"effect":%q}`, word(), word(), []string{"NoSchedule", "NoExecute", "PreferNoSchedule"}[r.Intn(3)]))
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	for i := 0; i < 60; i++ {
		metadata, spec := "", []string{}
		if r.Intn(3) > 0 {
			metadata = fmt.Sprintf(`{"labels":%s,"annotations":%s}`, words(), words())
		}
		if r.Intn(2) > 0 {
			spec = append(spec, `"taints":`+taints())
		}
		if r.Intn(2) > 0 {
			spec = append(spec, `"startupTaints":`+taints())
		}
		if r.Intn(2) > 0 {
			spec = append(spec, fmt.Sprintf(`"expireAfter":"%dh%dm"`, r.Intn(1000), r.Intn(60)))
		}
		if r.Intn(2) > 0 {
			spec = append(spec, fmt.Sprintf(`"terminationGracePeriod":"%ds"`, r.Intn(100000)))
		}
		specs = append(specs, template(metadata, strings.Join(spec, ",")))
	}
	rows := []hashRow{}
	for _, spec := range specs {
		pool := &v1.NodePool{}
		must(json.Unmarshal([]byte(spec), &pool.Spec))
		rows = append(rows, hashRow{Spec: json.RawMessage(spec), Hash: pool.Hash()})
	}
	return rows
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

type cronRow struct {
	Schedule string            `json:"schedule"`
	Error    string            `json:"error,omitempty"`
	Next     map[string]string `json:"next,omitempty"`
}

var cronTimes = []string{
	"2024-01-01T00:00:00Z", "2024-02-28T23:59:59Z", "2024-02-29T00:00:00.5Z", "2023-02-28T12:30:00Z", "2024-12-31T23:59:59.999999999Z", "2026-11-15T09:41:07Z", "1970-01-01T00:00:00Z",
	"1969-12-31T23:59:59.25Z", "2100-02-28T00:00:00Z", "2024-03-10T06:59:59Z",
}

func crons() []cronRow {
	schedules := []string{
		"* * * * *", "0 0 * * *", "*/5 * * * *", "0 9 * * mon-fri", "0 9 * * MON-FRI", "0 0 1 * *", "0 0 29 2 *", "0 0 30 2 *", "0 0 31 2 *", "0 0 31 4,6,9,11 *", "0 0 31 * *", "0 0 1 1 *", "0 0 * * 0", "0 0 * * 6",
		"0 0 * * 7", "0 0 * * sun", "0 0 13 * 5", "0 0 13 * fri", "0 0 */2 * 1", "0 0 13 */1 *", "0 0 * */3 *", "0 0 ? * ?", "? ? ? ? ?", "0 0 1-7 * 1", "59 23 31 12 *", "15,45 * * * *", "1-10/3 * * * *", "5/15 * * * *", "0 0/6 * * *",
		"0-59 0-23 1-31 1-12 0-6", "30 4 1,15 * 5", "0 12 * jan-mar *", "0 12 * JAN,DEC *", "0 12 * january *", "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly", "@every 1h", "@every 90s", "@every 500ms",
		"@every x", "@every", "@Daily", "@hourlyfoo", "@reboot", "", " ", "0", "0 0 * *", "0 0 * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 0 *", "* * * 13 *", "-1 * * * *", "a * * * *", "1- * * * *", "1-2-3 * * * *",
		"1/2/3 * * * *", "*/0 * * * *", "*/-5 * * * *", "5-1 * * * *", "1,, * * * *", ", * * * *", "*/100 * * * *", "*/5,1 * * * *", "*-5 * * * *", "*-5/10 * * * *", "+5 * * * *", "05 * * * *", "1.5 * * * *", "99999999999999999999 * * * *",
		"*/99999999999999999999 * * * *", "0 0 * * fri-sun", "0 0 * * 5-0", "0 0 * feb 1", "\t0  0\n* * *", "0 0 * * 1#2", "0 0 L * *", "0 0 1W * *", "TZ=UTC 0 0 * * *", "CRON_TZ=UTC 0 0 * * *", "0 0 29 2 1", "0 0 29 2 ?", "0 0 29 2 */2",
		"0 0 */31 2 *", "0 0 30-31 2 *", "0 8-18 * * 1-5", "0 22 * 6-8 *", "7 7 7 7 *", "7 7 7 7 7", "*/7 */5 */3 */2 *", "*/1 * * * *", "0 0 */1 * 3", "0 0 2 * */1",
	}
	rows := []cronRow{}
	for _, s := range schedules {
		row := cronRow{Schedule: s}
		schedule, err := cron.ParseStandard("TZ=UTC " + s)
		if err != nil {
			row.Error = err.Error()
		} else {
			row.Next = map[string]string{}
			for _, at := range cronTimes {
				t, err := time.Parse(time.RFC3339Nano, at)
				must(err)
				next := schedule.Next(t.UTC())
				if next.IsZero() {
					row.Next[at] = ""
				} else {
					row.Next[at] = next.Format(time.RFC3339Nano)
				}
			}
		}
		rows = append(rows, row)
	}
	return rows
}

type budgetRow struct {
	Budgets json.RawMessage `json:"budgets"`
	Now     string          `json:"now"`
	Nodes   int             `json:"nodes"`
	Reason  string          `json:"reason"`
	Allowed int             `json:"allowed"`
	Error   string          `json:"error,omitempty"`
}

func budgets() []budgetRow {
	lists := []string{
		`[]`, `[{"nodes":"10%"}]`, `[{"nodes":"0"}]`, `[{"nodes":"5"}]`, `[{"nodes":"100%"}]`, `[{"nodes":"0%"}]`, `[{"nodes":"33%"}]`, `[{"nodes":"1%"}]`, `[{"nodes":"10%"},{"nodes":"3"}]`,
		`[{"nodes":"2","reasons":["Drifted"]}]`, `[{"nodes":"2","reasons":["Drifted"]},{"nodes":"1","reasons":["Empty","Underutilized"]}]`, `[{"nodes":"2","reasons":[]}]`, `[{"nodes":"0","reasons":["Unhealthy"]},{"nodes":"50%"}]`,
		`[{"nodes":"0","schedule":"0 9 * * mon-fri","duration":"8h"}]`, `[{"nodes":"0","schedule":"@daily","duration":"10m"}]`, `[{"nodes":"0","schedule":"@daily","duration":"23h59m"}]`, `[{"nodes":"0","schedule":"* * * * *","duration":"1m"}]`,
		`[{"nodes":"1","schedule":"0 0 31 2 *","duration":"1h"}]`, `[{"nodes":"1","schedule":"0 0 * * 7","duration":"1h"}]`, `[{"nodes":"1","schedule":"@hourlyfoo","duration":"1h"},{"nodes":"4"}]`,
		`[{"nodes":"1","schedule":"0 0 * * 7","duration":"1h","reasons":["Empty"]},{"nodes":"4"}]`, `[{"nodes":"1","schedule":"@weekly","duration":"100h0m0s"}]`, `[{"nodes":"1","duration":"1h"}]`, `[{"nodes":"1","schedule":"@daily"}]`,
		`[{"nodes":"99999999999"}]`, `[{"nodes":"99999999999999999999"}]`, `[{"nodes":"abc"}]`, `[{"nodes":"abc%"}]`, `[{"nodes":""}]`, `[{"nodes":"4294967295"}]`, `[{"nodes":"2","schedule":"0 0 * * *","duration":"0h"}]`,
	}
	rows := []budgetRow{}
	for _, list := range lists {
		for _, at := range []string{"2024-01-01T00:00:00Z", "2024-01-03T12:00:30.5Z", "2024-01-06T23:59:59Z", "2024-02-29T09:00:00Z"} {
			for _, nodes := range []int{0, 1, 9, 10, 101} {
				reason := []v1.DisruptionReason{v1.DisruptionReasonEmpty, v1.DisruptionReasonDrifted, v1.DisruptionReasonUnhealthy, v1.DisruptionReasonUnderutilized}[(nodes+len(list))%4]
				pool := &v1.NodePool{}
				must(json.Unmarshal([]byte(list), &pool.Spec.Disruption.Budgets))
				now, err := time.Parse(time.RFC3339Nano, at)
				must(err)
				row := budgetRow{Budgets: json.RawMessage(list), Now: at, Nodes: nodes, Reason: string(reason)}
				clk := clocktesting.NewFakeClock(now)
				row.Allowed = pool.MustGetAllowedDisruptions(clk, nodes, reason)
				if _, err := pool.GetAllowedDisruptionsByReason(clk, nodes, reason); err != nil {
					row.Error = err.Error()
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}

type validationRow struct {
	Kind  string          `json:"kind"`
	Spec  json.RawMessage `json:"spec"`
	Error string          `json:"error"`
}

// validations holds specs whose message has no part in random order: at most one bad label.
func validations() []validationRow {
	pool := func(metadata, spec string) string {
		if spec != "" {
			spec = "," + spec
		}
		if !strings.Contains(spec, `"requirements"`) {
			spec += `,"requirements":[]`
		}
		return `{"template":{"metadata":` + metadata + `,"spec":{` + nodeClassRef + spec + `}}}`
	}
	requirement := func(r string) string { return pool("{}", `"requirements":[`+r+`]`) }
	long := strings.Repeat("a", 64)
	rows := []validationRow{}
	for _, spec := range []string{
		pool("{}", ""), pool(`{"labels":{"a":"b"}}`, ""), pool(`{"labels":{"karpenter.sh/nodepool":"x"}}`, ""), pool(`{"labels":{"karpenter.sh/custom":"x"}}`, ""), pool(`{"labels":{"sub.karpenter.sh/custom":"x"}}`, ""),
		pool(`{"labels":{"kubernetes.io/hostname":"x"}}`, ""), pool(`{"labels":{"a b":"x"}}`, ""), pool(`{"labels":{"a/b/c":"x"}}`, ""), pool(`{"labels":{"A.com/b":"x y"}}`, ""), pool(`{"labels":{"a":"`+long+`"}}`, ""), pool(`{"labels":{"":""}}`, ""),
		pool("{}", `"taints":[{"key":"","effect":"NoSchedule"}]`), pool("{}", `"taints":[{"key":"a b","effect":"NoSchedule"},{"key":"","effect":"NoSchedule"}]`), pool("{}", `"taints":[{"key":"a","value":"b c","effect":"Bad"}]`),
		pool("{}", `"taints":[{"key":"a","effect":"NoSchedule"},{"key":"a","effect":"NoSchedule"}]`), pool("{}", `"taints":[{"key":"a","effect":"NoSchedule"}],"startupTaints":[{"key":"a","effect":"NoSchedule"}]`),
		pool("{}", `"taints":[{"key":"a","effect":"NoSchedule"},{"key":"a","effect":"NoExecute"}]`), pool("{}", `"startupTaints":[{"key":"`+long+`","effect":""}]`),
		requirement(`{"key":"a","operator":"In","values":[]}`), requirement(`{"key":"a","operator":"In","values":["b@"]}`), requirement(`{"key":"a b","operator":"Exists"}`), requirement(`{"key":"a","operator":"Gt","values":["-1"]}`),
		requirement(`{"key":"a","operator":"Gte","values":["1","2"]}`), requirement(`{"key":"a","operator":"Lt"}`), requirement(`{"key":"a","operator":"Lte","values":["x"]}`), requirement(`{"key":"a","operator":"Gt","values":["9223372036854775808"]}`),
		requirement(`{"key":"a","operator":"In","values":["b"],"minValues":2}`), requirement(`{"key":"karpenter.sh/nodepool","operator":"In","values":["x"]}`), requirement(`{"key":"kubernetes.io/hostname","operator":"Exists"}`),
		requirement(`{"key":"karpenter.sh/custom","operator":"Exists"}`), requirement(`{"key":"karpenter.sh/capacity-type","operator":"In","values":["x","y"]}`), requirement(`{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot","y"]}`),
		requirement(`{"key":"karpenter.sh/capacity-type","operator":"NotIn","values":["x"]}`), requirement(`{"key":"karpenter.sh/capacity-type","operator":"In"}`), requirement(`{"key":"beta.kubernetes.io/arch","operator":"In","values":["b c"]}`),
		requirement(`{"key":"failure-domain.beta.kubernetes.io/zone","operator":"In"}`), requirement(`{"key":"a","operator":"In"},{"key":"b","operator":"In"}`),
		pool(`{"labels":{"karpenter.sh/nodepool":"x"}}`, `"taints":[{"key":"","effect":"x"}],"requirements":[{"key":"karpenter.sh/nodepool","operator":"In"}]`),
	} {
		p := &v1.NodePool{}
		must(json.Unmarshal([]byte(spec), &p.Spec))
		rows = append(rows, validationRow{Kind: "NodePool", Spec: json.RawMessage(spec), Error: text(p.RuntimeValidate(context.Background()))})
	}
	for _, spec := range []string{
		`{"requirements":[]}`, `{"requirements":[{"key":"a","operator":"NotIn"}]}`, `{"requirements":[{"key":"a","operator":"In"}]}`, `{"requirements":[{"key":"karpenter.sh/nodepool","operator":"In","values":["x"]}]}`,
		`{"requirements":[{"key":"karpenter.sh/x","operator":"NotIn"}]}`, `{"requirements":[],"capacity":{"cpu":"1"}}`, `{"requirements":[],"capacity":{"example.com/gpu":"1"}}`, `{"requirements":[{"key":"a b","operator":"NotIn"}],"capacity":{"pods":"1"}}`,
	} {
		o := &v1alpha1.NodeOverlay{}
		must(json.Unmarshal([]byte(spec), &o.Spec))
		rows = append(rows, validationRow{Kind: "NodeOverlay", Spec: json.RawMessage(spec), Error: text(o.RuntimeValidate(context.Background()))})
	}
	return rows
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

type durationRow struct {
	In    string `json:"in"`
	Error bool   `json:"error,omitempty"`
	Nanos int64  `json:"nanos"`
	Out   string `json:"out,omitempty"`
}

func durations() []durationRow {
	rows := []durationRow{}
	for _, in := range []string{
		"", "0", "0s", "1s", "30s", "720h", "1h30m", "90m", "1.5h", ".5s", "1.s", "-1m", "+2h", "100us", "100µs", "100μs", "1ns", "1ms", "1h0m0.000000001s", "1d", "5", "h", "1h ", " 1h", "1 h", ".h", "+", "-", "1hm", "1m1h", "0.1ns", "1.9999999999s",
		"2562047h47m16.854775807s", "1000000h", "00001s", "1e3s", "0.000000000000000000001h", "3.000000000000000000001h", "-0", "-.5m", "Never",
	} {
		row := durationRow{In: in}
		d, err := time.ParseDuration(in)
		row.Error = err != nil
		if err == nil {
			row.Nanos, row.Out = int64(d), d.String()
		}
		rows = append(rows, row)
	}
	return rows
}
