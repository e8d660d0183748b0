package manager

import "github.com/slipway-dev/slipway/internal/cloud"

// Clouds makes the providers that a file of --cloud-config names, by their names.
func Clouds(path string) (map[string]cloud.Provider, error) { return loadClouds(path) }
