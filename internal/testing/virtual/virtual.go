// Package virtual runs tests with a virtual clock.
package virtual

import (
	"testing"
	"testing/synctest"
)

// InVirtualTime returns the test as a function for [testing.T.Run] that runs it with a virtual clock.
func InVirtualTime(test func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		synctest.Test(t, test)
	}
}
