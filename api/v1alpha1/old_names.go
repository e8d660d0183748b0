package v1alpha1

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
)

// This file reads the names that fields, reasons and states had before they were renamed. The old names are supported for
// one release. They are resolved while JSON is decoded, because every reader decodes: clients, caches, informers, files
// and saved snapshots. So no reader can forget them, and all other code knows only the new names.
//
// A decoded object has no old names, and encoding it writes only new ones. The exception is a value that contradicts its
// new name. It stays in its Deprecated field, so that [NodeGroupSpec.Contradictions] can report it. The API server refuses
// such an object. A file of NodeGroups is not checked by the API server.

// oldReasons maps the old reasons of retirements to the new ones.
var oldReasons = map[Reason]Reason{"Underused": Underutilized, "MachineGone": InstanceGone}

// oldCodes maps the old reason codes of conditions, retirements and replacements to the new ones.
var oldCodes = map[string]string{
	"AtMaximum":            "AtMaxSize",
	"BelowMinimum":         "BelowMinSize",
	"CalledOff":            "Cancelled",
	"CloudAndNodeDisagree": "CloudNodeMismatch",
	"CloudNotRead":         "CloudUnreadable",
	"ForeignMachine":       "ForeignInstance",
	"GoesOn":               "Unblocked",
	"GroupNotJudged":       "GroupNotReady",
	"HeadRoom":             "Headroom",
	"KeepingPod":           "MatchingPod",
	"MachineBack":          "InstanceRecovered",
	"MachineGone":          "InstanceGone",
	"MachineKept":          "InstanceKept",
	"MachineNotConfirmed":  "InstanceNotConfirmed",
	"Minimum":              "MinSize",
	"NoRoom":               "PodsDoNotFit",
	"NobodyNeedsIt":        "NotNeeded",
	"NotGivenBack":         "RestoreFailed",
	"NoticeOver":           "NoticeEnded",
	"Read":                 "Reachable",
	"RoomElsewhere":        "FitsElsewhere",
	"RoomUnknown":          "FitUnknown",
	"SeveralGroups":        "MultipleGroups",
}

// UnmarshalJSON decodes a spec with new or old field names. An old name counts only if the new one is not set.
func (s *NodeGroupSpec) UnmarshalJSON(data []byte) error {
	type plain NodeGroupSpec // has no UnmarshalJSON
	given := struct {
		*plain
		MinSize *int32 `json:"minSize"` // nil if not set, which an int32 does not tell from 0
	}{plain: (*plain)(s)}
	if err := json.Unmarshal(data, &given); err != nil {
		return err
	}
	if given.MinSize != nil {
		s.MinSize = *given.MinSize
	}
	// The schema of earlier versions had the default 0, so objects have a 0 that no user has set.
	if old := s.DeprecatedMinSize; old != nil && (given.MinSize == nil || *old == 0 || *old == s.MinSize) {
		if given.MinSize == nil {
			s.MinSize = *old
		}
		s.DeprecatedMinSize = nil
	}
	resolveOldField(&s.MaxSize, &s.DeprecatedMaxSize, func(a, b *int32) bool { return *a == *b })
	if up := s.ScaleUp; up != nil {
		// The schema of earlier versions had the default true.
		resolveOldField(&up.EnforceMinSize, &up.DeprecatedEnforceMinSize, func(value, old *bool) bool { return *old || *value == *old })
		resolveOldField(&up.Headroom, &up.DeprecatedHeadroom, equal[Headroom])
	}
	if down := s.ScaleDown; down != nil {
		resolveOldField(&down.Underutilized, &down.DeprecatedUnderutilized, equal[UnderutilizedRule])
	}
	for i := range s.DisruptionBudgets {
		s.DisruptionBudgets[i].Reasons = renameReasons(s.DisruptionBudgets[i].Reasons)
	}
	return nil
}

// resolveOldField moves an old field to the new one if only the old one is set, and clears the old one if both mean the same.
func resolveOldField[T any](value, old **T, isSame func(value, old *T) bool) {
	switch {
	case *old == nil:
	case *value == nil:
		*value, *old = *old, nil
	case isSame(*value, *old):
		*old = nil
	}
}

func equal[T any](a, b *T) bool { return equality.Semantic.DeepEqual(a, b) }

// renameReasons replaces old reasons by new ones. A list with both names of a reason gets it once, since it is a set.
func renameReasons(reasons []Reason) []Reason {
	var renamed []Reason
	for _, r := range reasons {
		_, isOld := oldReasons[r]
		r = currentName(oldReasons, r)
		if isOld && (slices.Contains(reasons, r) || slices.Contains(renamed, r)) {
			continue
		}
		renamed = append(renamed, r)
	}
	return renamed
}

// currentName returns the new name of an old one. Other names are returned unchanged.
func currentName[N comparable](old map[N]N, name N) N {
	if current, ok := old[name]; ok {
		return current
	}
	return name
}

// OldNameContradictions returns an error for each old field name that contradicts its new name. Each error begins with the
// field.
func (s *NodeGroupSpec) OldNameContradictions() (errs []error) {
	report := func(field, current string, given bool) {
		if given {
			errs = append(errs, fmt.Errorf("%s: is the old name of %s and has another value: remove it", field, current))
		}
	}
	report("spec.minimum", "minSize", s.DeprecatedMinSize != nil)
	report("spec.maximum", "maxSize", s.DeprecatedMaxSize != nil)
	if s.ScaleUp != nil {
		report("spec.scaleUp.keepMinimum", "enforceMinSize", s.ScaleUp.DeprecatedEnforceMinSize != nil)
		report("spec.scaleUp.headRoom", "headroom", s.ScaleUp.DeprecatedHeadroom != nil)
	}
	if s.ScaleDown != nil {
		report("spec.scaleDown.underused", "underutilized", s.ScaleDown.DeprecatedUnderutilized != nil)
	}
	return errs
}

// UnmarshalJSON decodes a status with new or old field names and reason codes. The old cloudMinimum counts until the first
// write after an upgrade: without it, a group could fall below the minimum of its cloud.
func (s *NodeGroupStatus) UnmarshalJSON(data []byte) error {
	type plain NodeGroupStatus
	if err := json.Unmarshal(data, (*plain)(s)); err != nil {
		return err
	}
	if s.CloudMinSize == 0 {
		s.CloudMinSize = s.DeprecatedCloudMinSize
	}
	s.DeprecatedCloudMinSize = 0
	renameConditions(s.Conditions)
	return nil
}

// UnmarshalJSON decodes a spec with new or old reasons. The API server lets a program replace an old reason by the new one,
// because the spec is written back when the finalizer is added or removed.
func (s *NodeRetirementSpec) UnmarshalJSON(data []byte) error {
	type plain NodeRetirementSpec
	if err := json.Unmarshal(data, (*plain)(s)); err != nil {
		return err
	}
	s.Reason = currentName(oldReasons, s.Reason)
	return nil
}

// UnmarshalJSON decodes a status with new or old field names and reason codes. A retirement that an earlier version started
// continues by it.
func (s *NodeRetirementStatus) UnmarshalJSON(data []byte) error {
	type plain NodeRetirementStatus
	if err := json.Unmarshal(data, (*plain)(s)); err != nil {
		return err
	}
	s.InstanceGone = s.InstanceGone || s.DeprecatedInstanceGone
	s.DeprecatedInstanceGone = false
	renameCodes(s.Reasons)
	if s.Replacement != nil {
		renameCodes(s.Replacement.Reasons)
	}
	renameConditions(s.Conditions)
	return nil
}

// UnmarshalJSON decodes a status with new or old field names and states. An update that an earlier version started continues
// by it.
func (s *PoolUpdateStatus) UnmarshalJSON(data []byte) error {
	type plain PoolUpdateStatus
	if err := json.Unmarshal(data, (*plain)(s)); err != nil {
		return err
	}
	if s.Skipped == nil {
		s.Skipped = s.DeprecatedSkipped
	}
	s.DeprecatedSkipped = nil
	for i := range s.Machines {
		switch m := &s.Machines[i]; m.State {
		case "Leaving":
			m.State = MachineRemoving
		case "Gone":
			m.State = MachineRemoved
		}
	}
	return nil
}

func renameConditions(conditions []metav1.Condition) {
	for i := range conditions {
		conditions[i].Reason = currentName(oldCodes, conditions[i].Reason)
	}
}

func renameCodes(reasons []RetirementReason) {
	for i := range reasons {
		reasons[i].Code = currentName(oldCodes, reasons[i].Code)
	}
}
