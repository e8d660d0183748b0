package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// The media types of a chart in a registry (https://helm.sh/docs/topics/registries/#helm-chart-manifest).
const (
	chartConfigType = types.MediaType("application/vnd.cncf.helm.config.v1+json")
	chartLayerType  = types.MediaType("application/vnd.cncf.helm.chart.content.v1.tar+gzip")
)

// chartImage is a packaged chart as an OCI image, as `helm push` writes it, but without the time of the push.
type chartImage struct {
	config, manifest []byte
	layer            v1.Layer
}

// chartMetadata has the fields of Chart.yaml that the release reads.
type chartMetadata struct {
	Name, Version, AppVersion, Description, Home string
	Sources                                      []string
}

// newChartImage returns the OCI image of a packaged chart, and the chart's metadata.
func newChartImage(file string) (v1.Image, chartMetadata, error) {
	var metadata chartMetadata
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, metadata, err
	}
	description, err := chartFileContent(content, "Chart.yaml")
	if err != nil {
		return nil, metadata, fmt.Errorf("%s: %w", file, err)
	}
	config, err := yaml.YAMLToJSON(description)
	if err != nil {
		return nil, metadata, fmt.Errorf("%s: Chart.yaml: %w", file, err)
	}
	if err := json.Unmarshal(config, &metadata); err != nil {
		return nil, metadata, fmt.Errorf("%s: Chart.yaml: %w", file, err)
	}
	image := chartImage{config: config, layer: static.NewLayer(content, chartLayerType)}
	layer, err := partial.Descriptor(image.layer)
	if err != nil {
		return nil, metadata, err
	}
	digest, size, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, metadata, err
	}
	const prefix = "org.opencontainers.image."
	annotations := map[string]string{
		prefix + "title": metadata.Name, prefix + "version": metadata.Version,
		prefix + "description": metadata.Description, prefix + "url": metadata.Home,
	}
	if len(metadata.Sources) > 0 {
		annotations[prefix+"source"] = metadata.Sources[0]
	}
	image.manifest, err = json.Marshal(v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        v1.Descriptor{MediaType: chartConfigType, Digest: digest, Size: size},
		Layers:        []v1.Descriptor{*layer},
		Annotations:   annotations,
	})
	if err != nil {
		return nil, metadata, err
	}
	result, err := partial.CompressedToImage(image)
	return result, metadata, err
}

func (c chartImage) RawConfigFile() ([]byte, error) { return c.config, nil }

func (c chartImage) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

func (c chartImage) RawManifest() ([]byte, error) { return c.manifest, nil }

func (c chartImage) LayerByDigest(v1.Hash) (partial.CompressedLayer, error) { return c.layer, nil }

// chartFileContent returns a file at the top of a packaged chart.
func chartFileContent(chart []byte, file string) ([]byte, error) {
	gz, err := gzip.NewReader(bytes.NewReader(chart))
	if err != nil {
		return nil, err
	}
	for tr := tar.NewReader(gz); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("the chart has no %s", file)
		}
		if err != nil {
			return nil, err
		}
		if matched, err := filepath.Match("*/"+file, header.Name); err == nil && matched {
			return io.ReadAll(tr)
		}
	}
}
