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
	runDemo(t, demo.Options{})
}

// TestOtherCloudsDemoStepsPass leaves out the Spot notice. TestDemoStepsPass has its checks, and it would take 40 s.
func TestOtherCloudsDemoStepsPass(t *testing.T) {
	for _, cloud := range []string{demo.EmulatedAWS, demo.EmulatedGoogle} {
		t.Run(cloud, func(t *testing.T) {
			t.Parallel()
			runDemo(t, demo.Options{Cloud: cloud, SkipSpot: true})
		})
	}
}

// TestCloudThatCannotBeKeptIsRefused covers combinations that would leave agents without their cloud.
func TestCloudThatCannotBeKeptIsRefused(t *testing.T) {
	for _, o := range []demo.Options{{Cloud: demo.EmulatedAWS, Keep: true}, {Cloud: demo.EmulatedGoogle, Keep: true}, {Cloud: "AWS"}} {
		o.Dir = t.TempDir()
		if err := demo.RunDemo(t.Context(), o); err == nil || !strings.Contains(err.Error(), o.Cloud) {
			t.Errorf("cloud %q, keep %t: %v, want an error with the cloud", o.Cloud, o.Keep, err)
		}
	}
}

func runDemo(t *testing.T, o demo.Options) {
	t.Helper()
	var output bytes.Buffer
	o.Out, o.Version = &output, os.Getenv("SLIPWAY_KUBE_VERSION")
	err := demo.RunDemo(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, output.String())
	}
	t.Log(output.String()) // with -v
	if text := output.String(); !strings.Contains(text, " steps passed\n") {
		t.Errorf("the demo does not end with the number of passed steps:\n%s", text)
	}
}
