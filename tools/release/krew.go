package main

import (
	"context"
	"os"

	"sigs.k8s.io/yaml"
)

// krewPlugin is the krew manifest of a kubectl plugin. See
// https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/.
type krewPlugin struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Metadata   krewMetadata `json:"metadata"`
	Spec       krewSpec     `json:"spec"`
}

type krewMetadata struct {
	Name string `json:"name"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"` // at most 50 characters
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector krewSelector `json:"selector"`
	URI      string       `json:"uri"`
	SHA256   string       `json:"sha256"`
	Bin      string       `json:"bin"`
}

type krewSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

const krewFile = "krew-slipway.yaml"

// archiveDownload is where a package manager finds an archive of the release.
type archiveDownload struct{ URL, SHA256 string }

// archiveDownload returns the URL and the checksum of the archive of a product for a target platform.
func (r *release) archiveDownload(product string, t target) (archiveDownload, error) {
	name := r.archiveName(product, t)
	sum, err := sha256File(r.filePath(name))
	return archiveDownload{URL: r.download + "/" + r.source.Version + "/" + name, SHA256: sum}, err
}

// writeKrew writes the manifest for the index of krew. It contains the URLs and checksums of the plugin's archives.
func (r *release) writeKrew(context.Context, []executable) error {
	if r.download == "" {
		return nil
	}
	p := krewPlugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2",
		Kind:       "Plugin",
		Metadata:   krewMetadata{Name: cliCommand},
		Spec: krewSpec{
			Version:          r.source.Version,
			Homepage:         r.repositoryURL(),
			ShortDescription: "Take nodes out of service without dropping work",
			Description: "Drains and retires nodes, predicts a drain, explains why a node stays, and shows what Slipway's\n" +
				"agents and manager are doing. Draining needs no installation in the cluster.\n",
		},
	}
	for _, t := range r.targets {
		download, err := r.archiveDownload(kubectlPlugin, t)
		if err != nil {
			return err
		}
		p.Spec.Platforms = append(p.Spec.Platforms, krewPlatform{
			Selector: krewSelector{MatchLabels: map[string]string{"os": t.OS, "arch": t.Arch}},
			URI:      download.URL,
			SHA256:   download.SHA256,
			Bin:      t.exeName(kubectlPlugin),
		})
	}
	text, err := yaml.Marshal(p)
	if err != nil {
		return err
	}
	return os.WriteFile(r.filePath(krewFile), text, 0o644) //nolint:gosec // public
}
