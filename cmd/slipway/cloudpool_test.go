package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestI10MissingKubeconfigIsNamedByItsFlag(t *testing.T) {
	if _, err := loadKubeConfig(filepath.Join(t.TempDir(), "nope"), ""); err == nil || !strings.HasPrefix(err.Error(), "--kubeconfig: ") || !strings.Contains(err.Error(), "nope") {
		t.Error(err)
	}
}
