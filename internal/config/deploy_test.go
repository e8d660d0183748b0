package config

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// readManifest decodes the needed fields of one of the agent's manifests.
func readManifest(t *testing.T, name string, into any) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "deploy", "agent", name))
	if err == nil {
		err = yaml.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestDaemonSetReadsKustomizedConfiguration(t *testing.T) {
	var d struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Args         []string
						VolumeMounts []struct{ Name, MountPath, SubPath string }
					}
					Volumes []struct {
						Name      string
						ConfigMap struct{ Name string }
						Secret    struct {
							SecretName string
							Optional   bool
						}
					}
				}
			}
		}
	}
	readManifest(t, "daemonset.yaml", &d)
	var k struct {
		ConfigMapGenerator []struct {
			Name, Namespace string
			Files           []string
		}
	}
	readManifest(t, "kustomization.yaml", &k)
	pod := d.Spec.Template.Spec
	if len(pod.Containers) != 1 || len(k.ConfigMapGenerator) != 1 {
		t.Fatalf("%d containers, %d ConfigMaps", len(pod.Containers), len(k.ConfigMapGenerator))
	}
	agent, made := pod.Containers[0], k.ConfigMapGenerator[0]
	var file string
	for _, arg := range agent.Args {
		if value, ok := strings.CutPrefix(arg, "--config="); ok {
			file = value
		}
	}
	secrets := false
	for _, m := range agent.VolumeMounts {
		for _, v := range pod.Volumes {
			switch {
			case v.Name != m.Name:
			case m.MountPath == strings.TrimSuffix(exampleSecrets, "/"): // where the documented examples expect their secrets
				secrets = v.Secret.SecretName != "" && v.Secret.Optional
			case m.MountPath != file || path.Base(file) != m.SubPath || v.ConfigMap.Name != made.Name ||
				!slices.Contains(made.Files, m.SubPath) || made.Namespace != "slipway":
				t.Errorf("--config is %q, %s of the ConfigMap %s is mounted at %s, and %+v is made", file, m.SubPath, v.ConfigMap.Name,
					m.MountPath, made)
			default:
				file = ""
			}
		}
	}
	if file != "" {
		t.Errorf("--config=%s is not mounted", file)
	}
	if !secrets {
		t.Error("no Secret that may be missing is mounted at " + exampleSecrets)
	}
	var keys map[string]any
	if _, err := DecodeAgentFile(readManifest(t, "agent.yaml", &keys)); err != nil {
		t.Errorf("the agent refuses its own file: %v", err)
	}
}
