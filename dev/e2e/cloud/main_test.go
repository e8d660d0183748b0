// Package cloud_test tests the providers for Azure and cloudpool against emulators of their APIs.
package cloud_test

import (
	"flag"
	"testing"
)

// TestMain raises the default of -parallel, because most tests wait and hardly compute.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	m.Run()
}
