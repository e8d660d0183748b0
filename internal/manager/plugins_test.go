//go:build unix

package manager

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/cloud/plugin/faultyplugintest"
	"github.com/slipway-dev/slipway/plugin"
)

// idlePlugin is a plugin that does nothing.
type idlePlugin struct{ plugin.Provider }

func init() {
	faultyplugintest.RunAsPluginIfRequested(func() {
		plugin.Serve(func(c plugin.Config) (plugin.Provider, error) {
			return idlePlugin{}, c.Decode(&struct{ Path string }{})
		})
	})
}

func TestCloudConfigFileStartsPlugins(t *testing.T) {
	dir := t.TempDir()
	if err := faultyplugintest.WritePluginScript(dir, "Libvirt", faultyplugintest.Good); err != nil {
		t.Fatal(err)
	}
	rack := "externalGRPC: [{name: rack, address: '127.0.0.1:1', providerIDPrefix: 'rack://', insecure: true}]\n"
	plugins := "plugins:\n  directory: " + dir + "\n  use:\n"
	libvirt := "  - {type: Libvirt, config: {path: /tmp}, memoryLimit: '0', callTimeout: 20s}\n"
	for name, test := range map[string]struct {
		file string
		want string // names of the providers, or part of the error
		bad  bool
	}{
		"both kinds":               {file: rack + plugins + libvirt, want: "libvirt rack"},
		"one plugin twice":         {file: plugins + libvirt + "  - {type: Libvirt, name: second, memoryLimit: 0}\n", want: "libvirt second"},
		"one name twice":           {file: plugins + libvirt + libvirt, want: `use[1]: name: "libvirt": duplicate name`, bad: true},
		"one name of two kinds":    {file: rack + plugins + "  - {type: Libvirt, name: rack, memoryLimit: 0}\n", want: `plugins.use[0]: name: "rack" is used twice`, bad: true},
		"a plugin's config":        {file: plugins + "  - {type: Libvirt, config: {root: /tmp}, memoryLimit: 0}\n", want: `unknown field "root"`, bad: true},
		"a plugin that is not":     {file: plugins + "  - {type: GCP}\n", want: "the directory has Libvirt", bad: true},
		"a path as a type":         {file: plugins + "  - {type: ../Libvirt}\n", want: `type: "../Libvirt"`, bad: true},
		"no directory":             {file: "plugins: {use: [{type: Libvirt}]}\n", want: "directory: is empty", bad: true},
		"no plugins":               {file: "plugins: {directory: " + dir + "}\n", want: "use: is empty", bad: true},
		"a field that is not":      {file: plugins + "  - {type: Libvirt, sandbox: true}\n", want: "sandbox", bad: true},
		"too little memory":        {file: plugins + "  - {type: Libvirt, memoryLimit: 1Mi}\n", want: "memoryLimit: 1Mi", bad: true},
		"a list as config":         {file: plugins + "  - {type: Libvirt, config: [1]}\n", want: "config: want an object", bad: true},
		"a provider without files": {file: "externalGRPC: [{name: rack, address: 'h:1', providerIDPrefix: 'r://'}]\n", want: "externalGRPC[0]: caFile", bad: true},
		"nothing":                  {file: "{}\n", want: "want one of azure, openstack, cloudpool, plugins, externalGRPC", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "clouds.yaml")
			if err := os.WriteFile(path, []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
			providers, err := newProviders(path, nil, nil, slog.New(slog.DiscardHandler))
			defer closeClouds(providers)
			if test.bad {
				if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
					t.Errorf("error %v, want one that names %s and says %q", err, path, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Fields(test.want)
			for _, name := range want {
				if p := providers[name]; p == nil || p.Name() != name {
					t.Errorf("%s is %v", name, p)
				}
			}
			if len(providers) != len(want) {
				t.Errorf("there are %d providers, want %d", len(providers), len(want))
			}
		})
	}
}

func TestDocumentedCloudConfigIsValid(t *testing.T) {
	for _, page := range []string{"plugins.md", "writing-a-plugin.md"} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(raw), "```yaml\n")
		text, _, ended := strings.Cut(rest, "```")
		if !found || !ended {
			t.Fatalf("%s has no block of YAML", page)
		}
		var file Clouds
		if err := yaml.UnmarshalStrict([]byte(text), &file); err != nil {
			t.Errorf("%s: %v", page, err)
			continue
		}
		if file.Plugins == nil {
			t.Fatalf("%s names no plugins", page)
		}
		err = file.Plugins.Validate()
		for _, c := range file.ExternalGRPC {
			err = errors.Join(err, c.Validate())
		}
		if err != nil {
			t.Errorf("%s: %v", page, err)
		}
	}
}

func TestErrorForCloudsWithoutFileNamesNoFile(t *testing.T) {
	_, err := newProviders("", &Clouds{Azure: &AzureCloud{}}, nil, slog.New(slog.DiscardHandler))
	if err == nil || strings.Contains(err.Error(), "--cloud-config") || !strings.HasPrefix(err.Error(), "azure") {
		t.Errorf("%v", err)
	}
}
