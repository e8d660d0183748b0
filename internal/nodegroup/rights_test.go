package nodegroup

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// checkingCloud is a cloud that knows which rights the credential lacks for a group.
type checkingCloud struct {
	fakeCloud
	missing cloud.GroupPermissions
	unknown error
}

func (*checkingCloud) Name() string { return "sim" }

func (c *checkingCloud) MissingGroupPermissions(context.Context, string) (cloud.GroupPermissions, error) {
	return c.missing, c.unknown
}

func (*checkingCloud) MissingDeletePermissions(context.Context, string) (cloud.Permissions, error) {
	return nil, errors.New("not asked for")
}

func TestI10NoNodeIsRetiredBeforeTheDeletionRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newGroup("ci"), newCINode("a"))
		m := c.newController()
		from := &checkingCloud{missing: cloud.GroupPermissions{ToDelete: cloud.Permissions{{Name: "sets/delete/action", Scope: "/sets/ci"}}}}
		m.options.Clouds["sim"] = from
		reading := func() *metav1.Condition { // long enough to retire an idle node
			for range 12 {
				c.reconcile(m, "ci")
				time.Sleep(minute)
			}
			return meta.FindStatusCondition(c.getGroup("ci").Status.Conditions, v1alpha1.GroupAccepted)
		}
		is := reading()
		if is.Status != metav1.ConditionFalse || is.Reason != v1alpha1.CloudRightsMissing ||
			!strings.Contains(is.Message, "the credential lacks sets/delete/action on /sets/ci") {
			t.Errorf("%+v", is)
		}
		if all := c.listRetirements(); len(all) > 0 {
			t.Errorf("a retirement was asked for: %+v", all[0].Spec)
		}
		from.unknown, from.missing = errors.New("timeout"), cloud.GroupPermissions{} // I7: an unknown right refuses nothing
		if is = reading(); is.Status != metav1.ConditionTrue || len(c.listRetirements()) != 1 {
			t.Errorf("%+v, %d retirements", is, len(c.listRetirements()))
		}
	})
}
