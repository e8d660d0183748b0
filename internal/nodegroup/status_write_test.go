package nodegroup

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestNodeCountsAreWrittenOncePerSecond has five nodes that join one after another, like many retirements that reach a
// phase at once.
func TestNodeCountsAreWrittenOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newGroup("ci"))
		m := c.newController()
		c.reconcile(m, "ci")
		time.Sleep(minute)
		c.writes = nil
		var last reconcile.Result
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			must.NoError(t, c.Create(t.Context(), newCINode(name)))
			var err error
			if last, err = m.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "ci"}}); err != nil {
				t.Fatal(err)
			}
		}
		statuses := func() int {
			return len(slices.DeleteFunc(slices.Clone(c.writes), func(w string) bool { return !strings.HasPrefix(w, "update status") }))
		}
		if n := statuses(); n != 1 || last.RequeueAfter <= 0 || last.RequeueAfter > time.Second || c.getGroup("ci").Status.Nodes != 1 {
			t.Errorf("%d writes within a moment, the next in %s, %d nodes written; want one write, and another within 1s", n, last.RequeueAfter,
				c.getGroup("ci").Status.Nodes)
		}
		c.reconcile(m, "ci")
		if n := statuses(); n != 2 || c.getGroup("ci").Status.Nodes != 5 {
			t.Errorf("%d writes, %d nodes written; want 2 and 5", n, c.getGroup("ci").Status.Nodes)
		}
	})
}
