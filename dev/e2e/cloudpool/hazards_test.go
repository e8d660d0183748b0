package cloudpool_test

import (
	"net/http"
	"testing"
)

func TestASmallerSizeTakesTheMachinesWhosePodsFitElsewhere(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "shrink", 3, options{})
	web := f.app("web", 2)
	f.create(web.Deployment())
	f.manage()
	f.serve("a")
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	if n := len(f.pool.Machines()); f.pool.Desired() != 2 || n != 2 {
		t.Errorf("%d machines, and a desired size of %d; want 2", n, f.pool.Desired())
	}
}
