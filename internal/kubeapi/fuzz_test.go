package kubeapi

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzParseKubeconfig checks that any file gives a usable Config, or an error without a secret.
func FuzzParseKubeconfig(f *testing.F) {
	for _, user := range []string{"", "token: hunter2", "username: a, password: hunter2", "exec: {}", "as: x", "client-key-data: hunter2"} {
		f.Add([]byte(kubeconfigOf(goodServer, user)))
	}
	f.Add([]byte(kubeconfigOf(goodServer+`, proxy-url: "http://a:hunter2@b:1", certificate-authority-data: AAAA`, "")))
	f.Add([]byte(kubeconfigOf(`server: "https://a:hunter2@[::1]:x"`, "")))
	f.Add([]byte(`{current-context: "", contexts: [{name: "", context: null}], clusters: [{cluster: {server: "http://h"}}]}`))
	f.Add([]byte("a: &hunter2 [*hunter2]\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := parseKubeconfig(raw, "/nowhere")
		if err != nil {
			// The names of contexts, clusters, users and files may be quoted, and a URL without an "@" too.
			if strings.Contains(err.Error(), secret) && !isQuotedOnPurpose(err.Error()) {
				t.Errorf("%q contains a secret", err)
			}
			return
		}
		if c.Server == nil || c.Server.Hostname() == "" || c.Server.User != nil {
			t.Errorf("server %v", c.Server)
		}
		if _, err := c.NewClient("slipway-test"); err != nil && len(c.CA)+len(c.ClientCert)+len(c.ClientKey) == 0 {
			t.Errorf("no client: %v", err)
		}
	})
}

func isQuotedOnPurpose(message string) bool {
	for _, part := range []string{"context ", "user ", "current-context ", "server: \"", "proxy-url: \"", ": open "} {
		if strings.Contains(message, part) {
			return true
		}
	}
	return false
}

// FuzzWatchEvent checks that any line gives one object with a version, or none and an error.
func FuzzWatchEvent(f *testing.F) {
	for _, line := range []string{
		event("ADDED", "a", "1"), event("DELETED", "a", "2"), event("BOOKMARK", "", "3"), event("X", "a", "4"), "", "null", "{}", "[]",
		`{"type":"ERROR","object":` + status(410, "Expired", "old") + "}", `{"type":"ERROR"}`, `{"type":"ADDED","object":null}`,
		`{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"5","deletionTimestamp":"x"}}}`,
		`{"type":"ADDED","object":{"metadata":{"resourceVersion":"5"},"spec":{"volumes":[{"emptyDir":{}}]}}}{}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var told []Pod
		tell := func(p Pod) { told = append(told, p) }
		version, err := dispatchWatchEvent(line, Handler[Pod]{Changed: tell, Deleted: tell})
		switch {
		case err != nil && (version != "" || len(told) > 0):
			t.Errorf("version %q, calls %v, error %v", version, told, err)
		case err == nil && (version == "" || len(told) > 1 || !json.Valid(line)):
			t.Errorf("version %q, calls %v, no error", version, told)
		case err == nil && len(told) == 1 && told[0].ResourceVersion != version:
			t.Errorf("version %q in the call, but continued from %q", told[0].ResourceVersion, version)
		}
	})
}

// FuzzList checks that a list is JSON from its first byte, and that every truncation of it is refused (I7).
func FuzzList(f *testing.F) {
	f.Add(podPage("5", "", "a", "b"), uint(20))
	f.Add(`{"metadata":{"resourceVersion":"1"},"items":null} x`, uint(3))
	f.Add(`{"items":[[],{}],"items":[]}`, uint(0))
	f.Fuzz(func(t *testing.T, body string, cut uint) {
		if _, err := decodeList(strings.NewReader(body), func(Pod) {}); err != nil {
			return
		}
		d := json.NewDecoder(strings.NewReader(body))
		var whole map[string]json.RawMessage
		if err := d.Decode(&whole); err != nil {
			t.Fatalf("decoded as a list, but not a JSON object: %v", err)
		}
		short := body[:int(cut%uint(d.InputOffset()))]
		if _, err := decodeList(strings.NewReader(short), func(Pod) {}); err == nil {
			t.Errorf("%q is decoded as a list", short)
		}
	})
}
