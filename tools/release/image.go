package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	imagesFolder = "oci"
	imagesFile   = "images.txt"
	nonRoot      = "65532:65532" // user and group, as in the manifests' securityContext
)

// windowsVersions lists the builds of the Windows Server releases with long-term support: 2019, 2022 and 2025. A
// container runtime compares only the build number.
var windowsVersions = []string{"10.0.17763", "10.0.20348", "10.0.26100"}

// fixedTime is the time of files that all releases share. With the same time, their layers are also the same.
var fixedTime = time.Unix(0, 0).UTC()

// writeImages writes an OCI layout for each command. Each layout has an image index of all platforms of nodes. It
// sets r.images to the digests of these indexes.
func (r *release) writeImages(_ context.Context, binaries []executable) error {
	if !slices.ContainsFunc(binaries, func(b executable) bool { return b.Target.isNode() }) {
		r.log.Warn("no image is written", "reason", "no target is a platform of nodes")
		return nil
	}
	var list strings.Builder
	for _, command := range r.commands {
		r.log.Info("laying out the image", "image", command)
		index, err := r.newIndex(command, binaries)
		if err != nil {
			return fmt.Errorf("image %s: %w", command, err)
		}
		path, err := layout.Write(filepath.Join(r.out, imagesFolder, command), empty.Index)
		if err != nil {
			return fmt.Errorf("image %s: %w", command, err)
		}
		tag := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": r.source.Version})
		if err := path.AppendIndex(index, tag); err != nil {
			return fmt.Errorf("image %s: %w", command, err)
		}
		digest, err := index.Digest()
		if err != nil {
			return err
		}
		name := command + ":" + r.source.Version
		fmt.Fprintf(&list, "%s@%s\n", name, digest)
		r.images = append(r.images, subject{Name: name, SHA256: digest.Hex})
	}
	return os.WriteFile(r.filePath(imagesFile), []byte(list.String()), 0o644) //nolint:gosec // public
}

// newIndex returns the image index of one command. It has an image for every platform of nodes.
func (r *release) newIndex(command string, binaries []executable) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range binaries {
		if b.Command != command || !b.Target.isNode() {
			continue
		}
		versions := []string{""}
		build := newLinuxLayers
		if b.Target.OS == "windows" {
			versions, build = windowsVersions, newWindowsLayers
		}
		layers, err := build(b, r.source.Time)
		if err != nil {
			return nil, err
		}
		for _, version := range versions {
			image, err := r.newImage(b, version, layers)
			if err != nil {
				return nil, err
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
				Platform: &v1.Platform{OS: b.Target.OS, Architecture: b.Target.Arch, OSVersion: version},
			}})
		}
	}
	return mutate.Annotations(index, r.imageLabels(command)).(v1.ImageIndex), nil
}

// imageLabels returns the labels and annotations of a command's image. Their keys are defined in
// https://github.com/opencontainers/image-spec/blob/main/annotations.md.
func (r *release) imageLabels(command string) map[string]string {
	description := "Takes Kubernetes nodes into and out of service without dropping work"
	if command == agentCommand {
		description = "Slipway's agent: detects that a node is going away and evicts its pods safely and in time"
	}
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title":         command,
		prefix + "description":   description,
		prefix + "url":           r.repositoryURL(),
		prefix + "source":        r.repositoryURL(),
		prefix + "documentation": r.repositoryURL() + "/tree/main/docs",
		prefix + "vendor":        "Slipway",
		prefix + "licenses":      "Apache-2.0",
		prefix + "version":       r.source.Version,
		prefix + "revision":      r.source.Commit,
		prefix + "created":       r.source.Time.Format(time.RFC3339),
	}
}

// newImage returns the image that runs one binary.
func (r *release) newImage(b executable, osVersion string, layers []v1.Layer) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	config, err := base.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.OSVersion = b.Target.OS, b.Target.Arch, osVersion
	config.Created = v1.Time{Time: r.source.Time}
	config.Config.Labels = r.imageLabels(b.Command)
	if b.Target.OS == "windows" {
		// The pod selects the user (runAsUserName), because a host process runs with an account of the node. A program
		// without folder is searched first in the image's files, and then in the path.
		config.Config.Entrypoint = []string{b.Target.exeName(b.Command)}
		config.Config.Env = []string{`PATH=C:\Windows\system32;C:\Windows`}
	} else {
		config.Config.Entrypoint = []string{"/" + linuxFolder + b.Command}
		config.Config.Env = []string{"PATH=/usr/local/bin"}
		config.Config.User = nonRoot
		config.Config.WorkingDir = "/"
	}
	image, err := mutate.ConfigFile(base, config)
	if err != nil {
		return nil, err
	}
	for _, layer := range layers {
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{
			Created: v1.Time{Time: r.source.Time}, CreatedBy: r.repositoryURL() + "/tree/main/tools/release",
		}})
		if err != nil {
			return nil, err
		}
	}
	return mutate.Annotations(image, r.imageLabels(b.Command)).(v1.Image), nil
}

const linuxFolder = "usr/local/bin/"

// newLinuxLayers returns two layers. The first has what a static binary needs: user names, TLS root certificates and
// a temporary folder. The second has the binary.
func newLinuxLayers(b executable, at time.Time) ([]v1.Layer, error) {
	base, err := newLayer([]archiveEntry{
		{Name: "etc/", Mode: 0o755},
		{Name: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\nnonroot:x:65532:\n")},
		{Name: "etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
		{Name: "etc/ssl/", Mode: 0o755},
		{Name: "etc/ssl/certs/", Mode: 0o755},
		{Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644, Data: rootCertificates()},
		{Name: "tmp/", Mode: 0o1777},
	}, fixedTime)
	if err != nil {
		return nil, err
	}
	program, err := newLayer([]archiveEntry{
		{Name: "usr/", Mode: 0o755},
		{Name: "usr/local/", Mode: 0o755},
		{Name: linuxFolder, Mode: 0o755},
		{Name: linuxFolder + b.Command, Mode: 0o755, Path: b.Path},
	}, at)
	return []v1.Layer{base, program}, err
}

// rootCertificates returns Mozilla's root certificates in PEM, from a Go package. It leaves out certificates that
// are trusted only under conditions, because a certificate file cannot state conditions.
func rootCertificates() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer never fails
	}
	return b.Bytes()
}

// newWindowsLayers returns two layers for a host-process container: a base layer, and the binary. A host-process
// container uses the Windows of its host. So its base layer needs only the five registry hives that a container
// runtime expects. Up to Windows Server 2022 the content of their files does not matter. From 2025 on they must be
// real registry hives (https://github.com/microsoft/windows-host-process-containers-base-image). Other Windows
// containers need a base image that only Microsoft may distribute. Dockerfile.windows builds such an image.
func newWindowsLayers(b executable, at time.Time) ([]v1.Layer, error) {
	entries := []archiveEntry{
		{Name: "Files/", Mode: 0o755},
		{Name: "Files/Windows/", Mode: 0o755},
		{Name: "Files/Windows/System32/", Mode: 0o755},
		{Name: "Files/Windows/System32/config/", Mode: 0o755},
	}
	for _, name := range []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"} {
		entries = append(entries, archiveEntry{Name: "Files/Windows/System32/config/" + name, Mode: 0o644, Data: newEmptyHive(name)})
	}
	base, err := newLayer(entries, fixedTime)
	if err != nil {
		return nil, err
	}
	program, err := newLayer([]archiveEntry{
		{Name: "Files/", Mode: 0o755},
		{Name: "Files/" + b.Target.exeName(b.Command), Mode: 0o755, Path: b.Path},
	}, at)
	return []v1.Layer{base, program}, err
}

// newLayer returns an image layer with the entries. It reads the files again for each use of the layer.
func newLayer(entries []archiveEntry, at time.Time) (v1.Layer, error) {
	open := func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeTar(w, entries, at)) }()
		return r, nil
	}
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}
