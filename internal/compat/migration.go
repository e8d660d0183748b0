package compat

import (
	"cmp"
	"net/url"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notify"
)

// Migration holds the configuration of a replaced tool after the conversion to Slipway's configuration.
type Migration struct {
	Tool   string
	Config config.Agent
	// Notes are what a user of the tool should know before the migration.
	Notes []string
	// Reader is the command that reads the file; empty is slipway agent.
	Reader string
}

// The files that hold the secrets of a migrated webhook. The pod has to mount a Secret at these paths.
const (
	webhookURLFile    = "/etc/slipway/secrets/webhook-url"            //nolint:gosec // a path
	proxyPasswordFile = "/etc/slipway/secrets/webhook-proxy-password" //nolint:gosec // a path
)

// ReplaceWebhookSecrets replaces the URL of a webhook, and the password of its proxy, by the names of files. The notes say
// which of the tool's flags has the content of each file.
func ReplaceWebhookSecrets(w *notify.Webhook, urlFlag, proxyFlag string) (notes []string) {
	w.URL, w.URLFile = "", webhookURLFile
	notes = append(notes, webhookURLFile+": must contain the value of "+urlFlag+"; mount a Secret.")
	if u, err := url.Parse(w.Proxy); err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			u.User = url.User(u.User.Username())
			w.Proxy, w.ProxyPasswordFile = u.String(), proxyPasswordFile
			notes = append(notes, proxyPasswordFile+": must contain the password of "+proxyFlag+"; mount a Secret.")
		}
	}
	return notes
}

// maxNoteWidth is the maximum length of a line in notes, in bytes.
const maxNoteWidth = 110

// ToFile returns a configuration file for `slipway agent --config`, or for another Reader. The notes are comments at its beginning.
func (m Migration) ToFile() ([]byte, error) {
	body, err := m.Config.EncodeFile()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("# For " + cmp.Or(m.Reader, "slipway agent --config FILE") + ", converted from a configuration of " + m.Tool + ".\n#\n")
	b.WriteString(FormatComments(m.Notes))
	if len(body) == 0 {
		body = []byte("# The defaults of slipway agent are sufficient.\n")
	}
	b.Write(body)
	return []byte(b.String()), nil
}

// FormatComments returns notes as a list in YAML comments.
func FormatComments(notes []string) string {
	var b strings.Builder
	for _, note := range notes {
		WriteComment(&b, note)
	}
	return b.String()
}

// WriteComment writes a note to b, as one list entry in YAML comments.
func WriteComment(b *strings.Builder, note string) {
	line := "# -"
	for _, word := range strings.Fields(note) {
		if len(line)+1+len(word) > maxNoteWidth {
			b.WriteString(line + "\n")
			line = "#  "
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
}

// FormatNodeGroup returns a NodeGroup as YAML. It omits the fields that only the cluster sets, and the labels of the
// compatibility mode.
func FormatNodeGroup(g v1alpha1.NodeGroup) ([]byte, error) {
	g.Labels = nil
	raw, err := yaml.Marshal(g)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := yaml.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	delete(tree, "status")
	if meta, ok := tree["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	if spec, ok := tree["spec"].(map[string]any); ok {
		for _, block := range []string{"drain", "cooldowns"} {
			if v, ok := spec[block].(map[string]any); ok && len(v) == 0 {
				delete(spec, block)
			}
		}
	}
	return yaml.Marshal(tree)
}
