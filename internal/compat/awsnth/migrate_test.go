package awsnth

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// migrate returns the configuration file for the tool's flags. Its notes are on one line.
func migrate(t *testing.T, args ...string) (file, notes string) {
	t.Helper()
	m, err := Migrate(args, io.Discard)
	must.NoError(t, err)
	raw, err := m.ToFile()
	must.NoError(t, err)
	for line := range strings.Lines(string(raw)) {
		if comment, is := strings.CutPrefix(line, "#"); is {
			notes += " " + strings.TrimSpace(comment)
		} else {
			file += line
		}
	}
	return file, notes
}

func TestMigratedFileIsValidAndHasNoSecrets(t *testing.T) {
	all := []string{
		"--webhook-url=https://example.com/s3cret", "--webhook-proxy=http://u:s3cret@proxy:3128",
		`--webhook-headers={"Authorization":"Bearer s3cret","X-Team":"a"}`, "--taint-node", "--taint-effect=NoExecute", "--cordon-only=false",
		"--exclude-from-load-balancers", "--enable-asg-lifecycle-draining", "--enable-rebalance-draining", "--pod-termination-grace-period=30",
		"--node-termination-grace-period=7200", "--enable-prometheus-server", "--json-logging", "--log-level=DEBUG", "--metadata-url=http://127.0.0.1:1338",
		"--max-concurrent-drains=2", "--enable-out-of-service-taint",
	}
	for _, args := range [][]string{nil, all, queueArgs, slices.Concat(queueArgs, all)} {
		file, notes := migrate(t, args...)
		check.Not(t, strings.Contains(file+notes, "s3cret"), "%v: a secret is in the file:\n%s%s", args, notes, file)
		c, err := config.DecodeAgentFile([]byte(file))
		if err != nil {
			t.Errorf("%v: %v in\n%s", args, err, file)
			continue
		}
		c.NodeName, c.Namespace = "n", "ns" // from the pod
		check.NoError(t, c.Validate())
		want := mustParse(t, append(slices.Clone(args), "--pod-namespace=ns")...).ToAgentConfig()
		check.Equal(t, want.BuildNoticePolicy().ActionByType, c.BuildNoticePolicy().ActionByType)
		if want.NodeName == "" { // the manager may set no label and taint of the tool
			want.Labels = nil
			check.Equal(t, "slipway.dev/notice", c.TaintKey)
		}
		check.Equal(t, want.Labels, c.Labels)
		check.Equal(t, want.MaintenanceLead, c.MaintenanceLead)
	}
}

func TestMigrateToTheQueueModeNamesTheManagersFlags(t *testing.T) {
	args := slices.Concat(queueArgs, []string{"--workers=7", "--heartbeat-interval=30", "--use-provider-id", "--check-tag-before-draining=false"})
	_, notes := migrate(t, args...)
	check.Contains(t, notes, "For slipway manager --aws-queue-agent-config FILE, converted from")
	list, _, _ := strings.Cut(strings.SplitN(notes, "The manager also needs: ", 2)[1], " - ")
	var q queue.Config
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	q.AddFlags(fs)
	must.NoError(t, fs.Parse(strings.Fields(list)))
	check.Equal(t, mustParse(t, args...).ToQueueConfig(), q)
}

func TestMigratedTemplateHasSlipwaysFields(t *testing.T) {
	for given, want := range map[string]string{
		"": `{"text":"[NTH][Instance Interruption] EventID: {{ .Event.EventId }} - Kind: {{ .Event.EventType }} - Instance: {{ (first .Event.Resources) }} - Node: {{ .NodeName }} - Description: {{ .Event.Description }} - Start Time: {{ .Deadline }}"}`,
		`.Kind {{ .Kind | upper }} {{ range .Pods }}{{ . }},{{ end }}`:                     `.Kind {{ .Event.EventType | upper }} {{ range .NodePods }}{{ . }},{{ end }}`,
		`{{if eq .Kind "SPOT_ITN"}}{{.EventID}}{{end}}{{$x := .NodeLabels}}{{$x.EventID}}`: `{{if eq .Event.EventType "SPOT_ITN"}}{{.Event.EventId}}{{end}}{{$x := .NodeLabels}}{{$x.EventID}}`,
		`{{ .InstanceLifeCycle }} {{ .PublicIP }} {{ .Region | quote }}`:                   `{{ .InstanceLifeCycle }} {{ .PublicIP }} {{ .NodeRegion | quote }}`,
	} {
		args := []string{"--webhook-url=https://example.com"}
		if given != "" {
			args = append(args, "--webhook-template="+given)
		}
		m, err := Migrate(args, io.Discard)
		must.NoError(t, err)
		check.Equal(t, want, m.Config.Notifications[0].Webhook.Template)
		check.NoError(t, notify.ValidateTemplate("template", m.Config.Notifications[0].Webhook.Template))
		hasNote := strings.Contains(strings.Join(m.Notes, "\n"), "have no equivalent, so messages are lost until you remove them: InstanceLifeCycle, PublicIP.")
		check.Equal(t, strings.Contains(given, "PublicIP"), hasNote)
	}
}
