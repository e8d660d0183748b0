// Package demo_test runs the demo as `make demo` does. Each step checks itself.
package demo_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/dev/demo"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

func TestDemoStepsPass(t *testing.T) {
	var output bytes.Buffer
	err := demo.RunDemo(t.Context(), demo.Options{Out: &output, Version: os.Getenv("SLIPWAY_KUBE_VERSION")})
	if err != nil {
		t.Fatalf("%v\n%s", err, output.String())
	}
	if text := output.String(); !strings.Contains(text, " steps passed\n") {
		t.Errorf("the demo does not end with the number of passed steps:\n%s", text)
	}
}
