// Package virtual runs tests in virtual time.
package virtual

import (
	"testing"
	"testing/synctest"
)

// InVirtualTime wraps a test so that it runs in virtual time, for [testing.T.Run].
func InVirtualTime(test func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		synctest.Test(t, test)
	}
}
