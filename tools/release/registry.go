package main

import (
	"fmt"
	"regexp"
	"slices"
)

// registryName matches a host, which has a dot or a port unless it is localhost, and a path.
var registryName = regexp.MustCompile(`^(localhost|[a-z0-9-]+(\.[a-z0-9-]+)+|[a-z0-9.-]+:[0-9]+)(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$`)

// checkRegistry returns an error if the registry is not a host and a path. Without a host, container tools would use Docker
// Hub.
func checkRegistry(registry string) error {
	if !registryName.MatchString(registry) {
		return fmt.Errorf("registry %q: must be a host and a path in lower case, such as ghcr.io/acme/slipway", registry)
	}
	return nil
}

// imageRepository returns the repository of the image of a command.
func imageRepository(registry, command string) string { return registry + "/" + command }

// chartRepository returns the repository of a chart. Charts have their own folder, because the chart slipway has the name of
// an image.
func chartRepository(registry, chart string) string { return registry + "/charts/" + chart }

// imageDigest returns the digest of the image of a command, such as sha256:012….
func (r *release) imageDigest(command string) string {
	i := slices.IndexFunc(r.images, func(s subject) bool { return s.Name == command+":"+r.source.Version })
	if i < 0 {
		return ""
	}
	return "sha256:" + r.images[i].SHA256
}

// imageReference returns the name of the image of a command in the registry, with tag and digest.
func (r *release) imageReference(command string) string {
	return fmt.Sprintf("%s:%s@%s", imageRepository(r.registry, command), r.source.Version, r.imageDigest(command))
}
