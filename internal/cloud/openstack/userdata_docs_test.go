package openstack

import (
	"crypto/sha256"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestDocumentedUserDataRenders checks that the examples are valid templates with valid cloud-init and agent
// configuration.
func TestDocumentedUserDataRenders(t *testing.T) {
	page, err := os.ReadFile("../../../docs/openstack.md")
	must.NoError(t, err)
	m := exampleMachine()
	secure := fmt.Sprintf("K10%x::%s", sha256.Sum256([]byte(m.Join.CACert)), m.Join.Token)
	rendered := map[string]bool{}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(#cloud-config\n.*?)```").FindAllStringSubmatch(string(page), -1) {
		u, err := parseUserData(block[1])
		if err != nil {
			t.Fatalf("%v in\n%s", err, block[1])
		}
		for _, labels := range []string{"", "pool=web,disk=fast"} {
			m.Labels, m.Taints = labels, strings.ReplaceAll(labels, "=", "=x:NoSchedule")
			out, err := u.render(m)
			if err != nil {
				t.Fatalf("%v in\n%s", err, block[1])
			}
			var config struct {
				Files []struct{ Path, Content string } `json:"write_files"`
				Run   []string                         `json:"runcmd"`
			}
			if err := yaml.Unmarshal(out, &config); err != nil || len(config.Files) != 1 || len(config.Run) == 0 {
				t.Fatalf("%+v, %v of\n%s", config, err, out)
			}
			path := config.Files[0].Path
			rendered[path] = true
			var file struct {
				Server, Token string
				Labels        []string `json:"node-label"`
				Taints        []string `json:"node-taint"`
			}
			if err := yaml.Unmarshal([]byte(config.Files[0].Content), &file); err != nil {
				t.Fatalf("%s: %v in\n%s", path, err, out)
			}
			count := map[string]int{"": 0, "pool=web,disk=fast": 2}[labels]
			if strings.Contains(path, "rancher") && (file.Server != "https://"+m.Join.Server || file.Token != secure ||
				len(file.Labels) != count || len(file.Taints) != count) {
				t.Errorf("%s: %+v, want the token %s and %d labels", path, file, secure, count)
			}
		}
	}
	for _, path := range []string{"/etc/kubernetes/join.yaml", "/etc/rancher/k3s/config.yaml", "/etc/rancher/rke2/config.yaml"} {
		if !rendered[path] {
			t.Errorf("no example writes %s", path)
		}
	}
}
