package wire

import (
	"fmt"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"google.golang.org/protobuf/types/known/timestamppb"

	pluginv1 "github.com/slipway-dev/slipway/api/plugin/v1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
)

// toValidUTF8 replaces invalid UTF-8 in a text, because protobuf refuses it.
func toValidUTF8(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// mapping pairs a value of package cloud with a value of the plugin protocol.
type mapping[A, B any] struct {
	cloudValue A
	protoValue B
}

var states = []mapping[cloud.State, pluginv1.State]{
	{cloud.Pending, pluginv1.State_STATE_PENDING},
	{cloud.Running, pluginv1.State_STATE_RUNNING},
	{cloud.Stopped, pluginv1.State_STATE_STOPPED},
	{cloud.Deleting, pluginv1.State_STATE_DELETING},
	{cloud.Failed, pluginv1.State_STATE_FAILED},
}

var refusals = []mapping[cloud.Refusal, pluginv1.Refusal]{
	{cloud.NoRight, pluginv1.Refusal_REFUSAL_NO_RIGHT},
	{cloud.NoQuota, pluginv1.Refusal_REFUSAL_NO_QUOTA},
	{cloud.NoCapacity, pluginv1.Refusal_REFUSAL_NO_CAPACITY},
	{cloud.AtLimit, pluginv1.Refusal_REFUSAL_AT_LIMIT},
	{cloud.Protected, pluginv1.Refusal_REFUSAL_PROTECTED},
	{cloud.Invalid, pluginv1.Refusal_REFUSAL_INVALID},
}

// FromRefusal converts a refusal to the plugin protocol. It returns REFUSAL_UNSPECIFIED for an unknown refusal.
func FromRefusal(r cloud.Refusal) pluginv1.Refusal {
	for _, p := range refusals {
		if p.cloudValue == r {
			return p.protoValue
		}
	}
	return pluginv1.Refusal_REFUSAL_UNSPECIFIED
}

// ToRefusal converts a refusal of the plugin protocol. It returns "" for an unknown refusal.
func ToRefusal(r pluginv1.Refusal) cloud.Refusal {
	for _, p := range refusals {
		if p.protoValue == r {
			return p.cloudValue
		}
	}
	return ""
}

// FromGroup converts a group.
func FromGroup(g cloud.Group) *pluginv1.Group {
	return &pluginv1.Group{Name: toValidUTF8(g.Name), Size: int64(g.Size), Min: int64(g.Min), Max: int64(g.Max)}
}

// ToGroup converts a group and validates it.
func ToGroup(m *pluginv1.Group) (cloud.Group, error) {
	g := cloud.Group{Name: m.GetName()}
	for _, field := range []struct {
		name string
		from int64
		to   *int
	}{{"size", m.GetSize(), &g.Size}, {"min", m.GetMin(), &g.Min}, {"max", m.GetMax(), &g.Max}} {
		if field.from < 0 || field.from > math.MaxInt32 {
			return cloud.Group{}, fmt.Errorf("group %q: %s: %d: want 0 to %d", g.Name, field.name, field.from, math.MaxInt32)
		}
		*field.to = int(field.from)
	}
	return g, nil
}

// FromInstance converts an instance.
func FromInstance(i cloud.Instance) *pluginv1.Instance {
	m := &pluginv1.Instance{
		ProviderId: toValidUTF8(i.ProviderID), Name: toValidUTF8(i.Name), ComputerName: toValidUTF8(i.ComputerName), Group: toValidUTF8(i.Group),
		Zone: toValidUTF8(i.Zone), Type: toValidUTF8(i.Type), Message: truncate(i.Message), Refusal: FromRefusal(i.Refusal),
		Created: fromTime(i.Created), Tags: map[string]string{},
		UniqueId: toValidUTF8(i.UniqueID), Kept: i.DeletionProtected, KeptReason: truncate(i.DeletionProtectionReason), Adopted: i.OwnerUncertain,
		FormerId: toValidUTF8(i.PreviousProviderID), AnyName: i.NameMayDiffer,
	}
	for _, p := range states {
		if p.cloudValue == i.State {
			m.State = p.protoValue
		}
	}
	for k, v := range i.Tags {
		m.Tags[toValidUTF8(k)] = toValidUTF8(v)
	}
	return m
}

// ToInstance converts an instance of the plugin protocol. It returns an error for an empty ID. An unknown state becomes
// Unknown.
func ToInstance(m *pluginv1.Instance) (cloud.Instance, error) {
	if m.GetProviderId() == "" {
		return cloud.Instance{}, fmt.Errorf("instance %q: its provider ID is empty", m.GetName())
	}
	i := cloud.Instance{
		ProviderID: m.GetProviderId(), Name: m.GetName(), ComputerName: m.GetComputerName(), Group: m.GetGroup(),
		Zone: m.GetZone(), Type: m.GetType(), State: cloud.Unknown, Created: toTime(m.GetCreated()), Tags: m.GetTags(),
		Message: m.GetMessage(), Refusal: ToRefusal(m.GetRefusal()),
		UniqueID: m.GetUniqueId(), DeletionProtected: m.GetKept(), DeletionProtectionReason: m.GetKeptReason(), OwnerUncertain: m.GetAdopted(),
		PreviousProviderID: m.GetFormerId(), NameMayDiffer: m.GetAnyName(),
	}
	for _, p := range states {
		if p.protoValue == m.GetState() {
			i.State = p.cloudValue
		}
	}
	return i, nil
}

// FromTemplate converts a template.
func FromTemplate(t cloud.Template) *pluginv1.Template {
	m := &pluginv1.Template{
		Name: t.Name, Zone: t.Zone, Cost: t.Cost, Labels: t.Labels, Capacity: map[string]string{},
	}
	for name, q := range t.Capacity {
		m.Capacity[string(name)] = q.String()
	}
	for _, taint := range t.Taints {
		m.Taints = append(m.Taints, &pluginv1.Taint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)})
	}
	return m
}

// ToTemplate converts a template and validates it.
func ToTemplate(m *pluginv1.Template) (cloud.Template, error) {
	t := cloud.Template{Name: m.GetName(), Zone: m.GetZone()}
	fail := func(format string, a ...any) (cloud.Template, error) {
		return cloud.Template{}, fmt.Errorf("template %q: %w", t.Name, fmt.Errorf(format, a...))
	}
	if t.Name == "" {
		return fail("its name is empty")
	}
	t.Cost, t.Labels = m.GetCost(), m.GetLabels()
	if !(t.Cost >= 0) || math.IsInf(t.Cost, 0) {
		return fail("cost: %v: want 0 or more", t.Cost)
	}
	for name, text := range m.GetCapacity() {
		q, err := resource.ParseQuantity(text)
		if err != nil || q.Sign() < 0 {
			return fail("capacity: %s: %q: want a Kubernetes quantity of 0 or more, such as 4 or 16Gi", name, text)
		}
		if t.Capacity == nil {
			t.Capacity = corev1.ResourceList{}
		}
		t.Capacity[corev1.ResourceName(name)] = q
	}
	for _, taint := range m.GetTaints() {
		switch effect := corev1.TaintEffect(taint.GetEffect()); effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
			t.Taints = append(t.Taints, corev1.Taint{Key: taint.GetKey(), Value: taint.GetValue(), Effect: effect})
		default:
			return fail("taint %s: effect %q: want NoSchedule, PreferNoSchedule or NoExecute", taint.GetKey(), effect)
		}
	}
	return t, nil
}

// FromOperation converts an operation.
func FromOperation(op cloud.Operation) *pluginv1.Operation {
	return &pluginv1.Operation{Id: toValidUTF8(op.ID), Started: fromTime(op.Started)}
}

// ToOperation converts an operation.
func ToOperation(m *pluginv1.Operation) cloud.Operation {
	return cloud.Operation{ID: m.GetId(), Started: toTime(m.GetStarted())}
}

// FromRecommendations converts the recommendations of an analyzer.
func FromRecommendations(recommendations []advice.Recommendation) *pluginv1.Advice {
	m := &pluginv1.Advice{}
	for _, w := range recommendations {
		message := &pluginv1.Wish{Reason: toValidUTF8(w.Reason)}
		if g := w.Grow; g != nil {
			message.What = &pluginv1.Wish_Grow{Grow: &pluginv1.Grow{
				Group: toValidUTF8(g.Group), Count: int64(g.Count), Template: toValidUTF8(g.Template),
			}}
		}
		if r := w.Retire; r != nil {
			message.What = &pluginv1.Wish_Retire{Retire: &pluginv1.Retire{Node: toValidUTF8(r.Node)}}
		}
		m.Wishes = append(m.Wishes, message)
	}
	return m
}

// ToRecommendations converts the recommendations of an analyzer and validates them.
func ToRecommendations(m *pluginv1.Advice) ([]advice.Recommendation, error) {
	var recommendations []advice.Recommendation
	for _, message := range m.GetWishes() {
		w := advice.Recommendation{Reason: message.GetReason()}
		if g := message.GetGrow(); g != nil {
			// Clamped, so that int cannot overflow; Validate refuses the value.
			count := int(min(max(g.GetCount(), 0), advice.MaxInstances+1))
			w.Grow = &advice.Grow{Group: g.GetGroup(), Count: count, Template: g.GetTemplate()}
		}
		if r := message.GetRetire(); r != nil {
			w.Retire = &advice.Retire{Node: r.GetNode()}
		}
		recommendations = append(recommendations, w)
	}
	return recommendations, advice.Validate(recommendations)
}

func fromTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// toTime converts a time. A missing or invalid time becomes the zero time.
func toTime(t *timestamppb.Timestamp) time.Time {
	if t == nil || !t.IsValid() {
		return time.Time{}
	}
	return t.AsTime()
}
