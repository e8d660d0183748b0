package manager_test

import (
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/dev/testbed"
)

// TestWaitSeesEndOfRetirementThatIsDeletedAtOnce retires a node whose NodeRetirement is deleted right after its last phase.
func TestWaitSeesEndOfRetirementThatIsDeletedAtOnce(t *testing.T) {
	t.Parallel()
	b := newPool(t, "unrecorded", 2, "maxSize: 3")
	b.manage("--retirement-ttl=0")
	out, err := b.RunSlipway(b.ctx, t, "retire", b.pool.NodeName(1), "--wait", "--timeout", testbed.TestTimeout.String())
	b.check(err)
	if !strings.Contains(out, "\nSucceeded: ") {
		t.Errorf("the progress is\n%s", out)
	}
}
