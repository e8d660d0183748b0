package wire_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	pluginv1 "github.com/slipway-dev/slipway/api/plugin/v1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/wire"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// roundTrip encodes and decodes a message.
func roundTrip[M proto.Message](t must.T, m, into M) M {
	raw, err := proto.Marshal(m)
	if err == nil {
		err = proto.Unmarshal(raw, into)
	}
	must.NoError(t, err)
	return into
}

var (
	anyText = rapid.String()
	anyMap  = rapid.MapOf(anyText, anyText)
	anyTime = rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "none") {
			return time.Time{}
		}
		return time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()
	})
	anyRefusal = rapid.SampledFrom([]cloud.Refusal{
		"", cloud.NoRight, cloud.NoQuota, cloud.NoCapacity, cloud.AtLimit, cloud.Protected, cloud.Invalid,
	})
)

func TestInstanceRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := cloud.Instance{
			ProviderID: "x" + anyText.Draw(t, "id"), Name: anyText.Draw(t, "name"), ComputerName: anyText.Draw(t, "computer"),
			Group: anyText.Draw(t, "group"), Zone: anyText.Draw(t, "zone"), Type: anyText.Draw(t, "type"),
			State: rapid.SampledFrom([]cloud.State{
				cloud.Pending, cloud.Running, cloud.Stopped, cloud.Deleting, cloud.Failed, cloud.Unknown,
			}).Draw(t, "state"),
			Created: anyTime.Draw(t, "created"), Tags: anyMap.Draw(t, "tags"), Message: anyText.Draw(t, "message"),
			Refusal: anyRefusal.Draw(t, "refusal"), UniqueID: anyText.Draw(t, "unique"), DeletionProtected: rapid.Bool().Draw(t, "kept"),
			DeletionProtectionReason: anyText.Draw(t, "kept reason"), OwnerUncertain: rapid.Bool().Draw(t, "adopted"),
			PreviousProviderID: anyText.Draw(t, "former"),
		}
		got, err := wire.ToInstance(roundTrip(t, wire.FromInstance(want), &pluginv1.Instance{}))
		diff := cmp.Diff(want, got, cmpopts.EquateEmpty())
		must.Not(t, diff != "" || err != nil, "%v\n%s", err, diff)
	})
}

// TestI4EveryInstanceFieldRoundTrips sets all fields, including later additions.
func TestI4EveryInstanceFieldRoundTrips(t *testing.T) {
	want := cloud.Instance{
		State: cloud.Stopped, Refusal: cloud.NoQuota, Created: time.Unix(1, 2).UTC(), Tags: map[string]string{"key": "value"},
	}
	fields := reflect.ValueOf(&want).Elem()
	for i := range fields.NumField() {
		switch f := fields.Field(i); {
		case !f.IsZero():
		case f.Kind() == reflect.String:
			f.SetString("the " + fields.Type().Field(i).Name)
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		default:
			t.Fatalf("%s: is a %s, which this test has to set", fields.Type().Field(i).Name, f.Type())
		}
	}
	got, err := wire.ToInstance(roundTrip(t, wire.FromInstance(want), &pluginv1.Instance{}))
	diff := cmp.Diff(want, got)
	must.Not(t, diff != "" || err != nil, "%v\n%s", err, diff)
}

func TestErrorRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inner := errors.New(anyText.Draw(t, "inner"))
		want := rapid.SampledFrom([]error{
			&cloud.NotFoundError{Kind: anyText.Draw(t, "kind"), Name: anyText.Draw(t, "name")},
			&cloud.ThrottledError{RetryAfter: time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "after")), Err: inner},
			&cloud.RefusedError{Reason: anyRefusal.Draw(t, "refusal"), Err: inner},
			inner,
		}).Draw(t, "error")
		if rapid.Bool().Draw(t, "wrapped") {
			want = fmt.Errorf("%s: %w", anyText.Draw(t, "outer"), want)
		}
		sent := status.Convert(wire.ToStatus(want)).Proto()
		got, answered := wire.FromStatus(status.ErrorProto(roundTrip(t, sent, status.New(codes.OK, "").Proto())))
		must.Not(t, !answered, "%v is not the plugin's own error", got)
		if cloud.IsNotFound(got) != cloud.IsNotFound(want) || cloud.RefusalOf(got) != cloud.RefusalOf(want) || cloud.IsThrottled(got) != cloud.IsThrottled(want) {
			t.Fatalf("%#v arrives as %#v", want, got)
		}
		var asked, told *cloud.ThrottledError
		must.Not(t, errors.As(want, &asked) && (!errors.As(got, &told) || asked.RetryAfter != told.RetryAfter), "%v arrives as %v", want, got)
		if text := want.Error(); text != "" && len(text) <= 2048 && got.Error() != text {
			t.Fatalf("%q arrives as %q", text, got.Error())
		}
	})
}

func TestStatusWithoutDetailIsNotNotFound(t *testing.T) {
	notFound := &pluginv1.Error{Kind: &pluginv1.Error_NotFound{NotFound: &pluginv1.NotFound{Kind: "instance", Name: "x"}}}
	for code := range codes.Code(17) {
		plain := status.New(code, "instance x: not found")
		if got, answered := wire.FromStatus(plain.Err()); cloud.IsNotFound(got) || answered {
			t.Errorf("I7: plain %s is %v", code, got)
		}
		if code == codes.OK || code == codes.NotFound {
			continue
		}
		detailed, err := plain.WithDetails(notFound)
		must.NoError(t, err)
		if got, _ := wire.FromStatus(detailed.Err()); cloud.IsNotFound(got) {
			t.Errorf("I7: %s with a NotFound detail is %v", code, got)
		}
	}
}

func TestTemplateRoundTripsOrIsRefused(t *testing.T) {
	want := cloud.Template{Name: "large", Zone: "z", NodeShape: cloud.NodeShape{
		Capacity: corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("32Gi")},
		Labels:   map[string]string{"a": "b"}, Taints: []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoExecute}}, Cost: 1.5,
	}}
	got, err := wire.ToTemplate(roundTrip(t, wire.FromTemplate(want), &pluginv1.Template{}))
	diff := cmp.Diff(want, got)
	check.Not(t, diff != "" || err != nil, "%v\n%s", err, diff)
	for says, m := range map[string]*pluginv1.Template{
		"name is empty":     {},
		"cost: -1":          {Name: "a", Cost: -1},
		"cost: NaN":         {Name: "a", Cost: math.NaN()},
		"cost: +Inf":        {Name: "a", Cost: math.Inf(1)},
		`cpu: "much"`:       {Name: "a", Capacity: map[string]string{"cpu": "much"}},
		`cpu: "-1"`:         {Name: "a", Capacity: map[string]string{"cpu": "-1"}},
		`effect "NoMondays`: {Name: "a", Taints: []*pluginv1.Taint{{Key: "k", Effect: "NoMondays"}}},
	} {
		check.ErrorContains(t, check.Err(wire.ToTemplate(m)), says)
	}
}

// FuzzMessages decodes arbitrary messages: nothing panics, and accepted values are valid.
func FuzzMessages(f *testing.F) {
	for _, m := range []proto.Message{
		wire.FromInstance(cloud.Instance{ProviderID: "a://b", State: cloud.Running, Created: time.Unix(1, 2)}),
		wire.FromGroup(cloud.Group{Name: "g", Size: 3}),
		wire.FromTemplate(cloud.Template{Name: "t", NodeShape: cloud.NodeShape{Capacity: corev1.ResourceList{"cpu": resource.MustParse("1")}}}),
		wire.FromError(&cloud.NotFoundError{Kind: "group", Name: "g"}),
		wire.FromRecommendations([]advice.Recommendation{{Grow: &advice.Grow{Group: "g", Count: 1}}, {Retire: &advice.Retire{Node: "n"}}}),
		wire.FromOperation(cloud.Operation{ID: "x", Started: time.Unix(5, 0)}),
	} {
		raw, err := proto.Marshal(m)
		must.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var instance pluginv1.Instance
		if proto.Unmarshal(raw, &instance) == nil {
			if i, err := wire.ToInstance(&instance); err == nil && (i.ProviderID == "" || i.State == "") {
				t.Errorf("accepted: %+v", i)
			}
		}
		var group pluginv1.Group
		if proto.Unmarshal(raw, &group) == nil {
			if g, err := wire.ToGroup(&group); err == nil && (g.Size < 0 || g.Min < 0 || g.Max < 0) {
				t.Errorf("accepted: %+v", g)
			}
		}
		var template pluginv1.Template
		if proto.Unmarshal(raw, &template) == nil {
			if c, err := wire.ToTemplate(&template); err == nil && (c.Name == "" || !(c.Cost >= 0)) {
				t.Errorf("accepted: %+v", c)
			}
		}
		var adviceMessage pluginv1.Advice
		if proto.Unmarshal(raw, &adviceMessage) == nil {
			if w, err := wire.ToRecommendations(&adviceMessage); err == nil && advice.Validate(w) != nil {
				t.Errorf("accepted: %+v", w)
			}
		}
		var failure pluginv1.Error
		if proto.Unmarshal(raw, &failure) == nil {
			if err := wire.ToError(&failure); !utf8.ValidString(err.Error()) || err.Error() == "" {
				t.Errorf("accepted: %q", err)
			}
		}
		var operation pluginv1.Operation
		if proto.Unmarshal(raw, &operation) == nil {
			wire.ToOperation(&operation)
		}
	})
}
