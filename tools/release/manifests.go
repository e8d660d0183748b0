package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/kustomize/api/filters/imagetag"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const deployFolder = "deploy"

// manifests maps files of the release to overlays in deploy/overlays.
var manifests = map[string]string{"install-agent.yaml": "agent-only", "install.yaml": "full"}

// podTemplates has the places of container images in Deployments and DaemonSets.
var podTemplates = types.FsSlice{
	{Path: "spec/template/spec/containers[]/image"}, {Path: "spec/template/spec/initContainers[]/image"},
}

// writeManifests renders overlays with the images of the registry, for kubectl apply. Without a registry it writes none.
func (r *release) writeManifests(context.Context, []executable) error {
	if r.registry == "" {
		return nil
	}
	for file, overlay := range manifests {
		dir := filepath.Join(r.source.Root, deployFolder, "overlays", overlay)
		text, err := r.renderOverlay(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if err := os.WriteFile(r.filePath(file), text, 0o644); err != nil { //nolint:gosec // public
			return err
		}
	}
	return nil
}

// renderOverlay returns the objects of an overlay in YAML. It returns an error if a container has an image that is not of
// this release.
func (r *release) renderOverlay(dir string) ([]byte, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionUnspecified // as kubectl apply -k does: namespaces first
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	for _, command := range r.commands {
		image := types.Image{
			Name: command, NewName: imageRepository(r.registry, command), NewTag: r.source.Version, Digest: r.imageDigest(command),
		}
		if err := objects.ApplyFilter(imagetag.Filter{ImageTag: image, FsSlice: podTemplates}); err != nil {
			return nil, err
		}
	}
	for _, object := range objects.Resources() {
		if err := r.checkImages(object); err != nil {
			return nil, err
		}
	}
	return objects.AsYaml()
}

// checkImages returns an error if a workload has a container with an image that is not of this release.
func (r *release) checkImages(object *resource.Resource) error {
	if kind := object.GetKind(); kind != "DaemonSet" && kind != "Deployment" {
		return nil
	}
	text, err := object.AsYAML()
	if err != nil {
		return err
	}
	var workload struct {
		Spec struct {
			Template struct {
				Spec struct{ Containers, InitContainers []struct{ Image string } }
			}
		}
	}
	if err := yaml.Unmarshal(text, &workload); err != nil {
		return fmt.Errorf("%s: %w", object.CurId(), err)
	}
	pod := workload.Spec.Template.Spec
	for _, c := range slices.Concat(pod.Containers, pod.InitContainers) {
		if !slices.ContainsFunc(r.commands, func(command string) bool { return c.Image == r.imageReference(command) }) {
			return fmt.Errorf("%s: image %q is not an image of the release: must be one of %v", object.CurId(), c.Image, r.commands)
		}
	}
	return nil
}
