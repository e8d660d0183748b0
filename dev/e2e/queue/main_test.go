// Package queue_test runs the AWS queue mode against an emulated AWS: the real manager on a real control plane, and whole
// courses of messages in virtual time.
package queue_test

import (
	"os"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestMain(m *testing.M) {
	for _, v := range aws.Credentials() { // for processes that run in this one
		key, value, _ := strings.Cut(v, "=")
		if err := os.Setenv(key, value); err != nil {
			panic(err)
		}
	}
	os.Exit(testbed.RunTestsAndStopShared(m))
}
