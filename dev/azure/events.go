package azure

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// EventType is the type of an event, which determines the event's impact. The values are the names that Scheduled
// Events uses.
type EventType string

// The five event types of api-version 2020-07-01.
const (
	// Freeze pauses the machine for some seconds; nothing is lost.
	Freeze EventType = "Freeze"
	// Reboot restarts the machine.
	Reboot EventType = "Reboot"
	// Redeploy restarts the machine on another host; its ephemeral disks are lost.
	Redeploy EventType = "Redeploy"
	// Preempt evicts a Spot machine.
	Preempt EventType = "Preempt"
	// Terminate deletes the machine.
	Terminate EventType = "Terminate"
)

// EventTypes returns all types of events.
func EventTypes() []EventType { return []EventType{Freeze, Reboot, Redeploy, Preempt, Terminate} }

// MinimumNotice returns the documented minimum time between the appearance of an event and its NotBefore. For
// Terminate, Azure's users set this time. MinimumNotice returns the smallest setting, 5 minutes.
func MinimumNotice(t EventType) time.Duration {
	switch t {
	case Freeze, Reboot:
		return 15 * time.Minute
	case Redeploy:
		return 10 * time.Minute
	case Terminate:
		return 5 * time.Minute
	case Preempt:
		return 30 * time.Second
	}
	return 0
}

// machineSurvives reports whether a machine still exists after an event of this type.
func (t EventType) machineSurvives() bool { return t != Preempt && t != Terminate }

// cutsPower reports whether an event of this type takes the machine down, temporarily or for good.
func (t EventType) cutsPower() bool { return t != Freeze }

// EventStatus is the status of an event in a document.
type EventStatus string

const (
	Scheduled EventStatus = "Scheduled"
	Started   EventStatus = "Started"
)

// EventSource is the party that requested an event: Azure or its user.
type EventSource string

const (
	Platform EventSource = "Platform"
	User     EventSource = "User"
)

// UnknownDuration is the DurationInSeconds of an event if the duration is unknown or does not apply.
const UnknownDuration = -1

// Announcement describes an event to announce. Only Type and Resources are required.
type Announcement struct {
	// ScaleSet is the scale set with the event's document. Empty means the scale set in the resources' names
	// ("aks-spot-12345678-vmss_3"), or the only scale set.
	ScaleSet string
	// EventID is a GUID in either letter case; when empty one is made, in capitals.
	// EventID is a GUID in either letter case. Empty means a new one in capitals.
	EventID string
	Type    EventType
	// Resources are the names of the event's machines, as the document shows them.
	Resources []string
	// Status is Scheduled or Started. Empty means Scheduled. Started is a hardware failure without notice.
	Status EventStatus
	// Notice is the time until NotBefore. If both are zero, it is the configured notice of the type.
	Notice time.Duration
	// NotBefore is rounded up to a full second. If it is in the past, the event starts at once.
	NotBefore time.Time
	// Source is Platform if empty.
	Source EventSource
	// Description is the document's description. Nil means Azure's usual text for type and source.
	Description *string
	// DurationSeconds is the document's duration: -1 is unknown, 0 is no impact. Nil means 5 for a Freeze and unknown for
	// the others.
	DurationSeconds *int
	// Outage is the real downtime of the machines in a Freeze, Reboot or Redeploy. Zero means DurationSeconds if it is
	// known, or else Options.Outage.
	Outage time.Duration
}

// The errors of Announce, for errors.Is.
var (
	ErrInvalid         = errors.New("invalid")
	ErrUnknownScaleSet = errors.New("no such scale set")
	ErrDuplicateEvent  = errors.New("event already exists")
)

// validate returns an error that names the first invalid field, its value, and the allowed values.
func (a Announcement) validate() error {
	switch {
	case !slices.Contains(EventTypes(), a.Type):
		return fmt.Errorf("type %q is %w: want one of %v", a.Type, ErrInvalid, EventTypes())
	case a.Status != "" && a.Status != Scheduled && a.Status != Started:
		return fmt.Errorf("status %q is %w: want %s or %s", a.Status, ErrInvalid, Scheduled, Started)
	case a.Source != "" && a.Source != Platform && a.Source != User:
		return fmt.Errorf("source %q is %w: want %s or %s", a.Source, ErrInvalid, Platform, User)
	case a.Notice < 0:
		return fmt.Errorf("notice %v is %w: want a positive duration", a.Notice, ErrInvalid)
	case a.Notice > 0 && !a.NotBefore.IsZero():
		return fmt.Errorf("notice %v with notBefore %v is %w: set one of them", a.Notice, a.NotBefore, ErrInvalid)
	case a.Status == Started && (a.Notice > 0 || !a.NotBefore.IsZero()):
		return fmt.Errorf("a notice or notBefore with status %s is %w: a started event has none", Started, ErrInvalid)
	case a.DurationSeconds != nil && *a.DurationSeconds < UnknownDuration:
		return fmt.Errorf("durationSeconds %d is %w: want -1 (unknown) or more", *a.DurationSeconds, ErrInvalid)
	case a.Outage < 0:
		return fmt.Errorf("outage %v is %w: want a positive duration", a.Outage, ErrInvalid)
	}
	if a.EventID != "" && !isGUID(a.EventID) {
		return fmt.Errorf("eventId %q is %w: want a GUID such as 602d9444-d2cd-49c7-8624-8643e7171297",
			a.EventID, ErrInvalid)
	}
	return validateResources(a.Resources)
}

func validateResources(resources []string) error {
	if len(resources) == 0 {
		return fmt.Errorf("an empty list of resources is %w: name at least one machine", ErrInvalid)
	}
	seen := make(map[string]bool, len(resources))
	for i, name := range resources {
		if strings.TrimSpace(name) == "" || strings.TrimSpace(name) != name || strings.Contains(name, "/") {
			return fmt.Errorf("resources[%d] %q is %w: want a machine's name, such as aks-spot-12345678-vmss_3",
				i, name, ErrInvalid)
		}
		if seen[strings.ToLower(name)] {
			return fmt.Errorf("resources[%d] %q is %w: it is listed twice", i, name, ErrInvalid)
		}
		seen[strings.ToLower(name)] = true
	}
	return nil
}

// defaultDescription returns Azure's usual description of an event. The texts come from examples in the
// documentation and from the scenarios of scheduled-events-mock-server.
func defaultDescription(t EventType, source EventSource) string {
	switch {
	case t == Reboot && source == User:
		return "Virtual machine is going to be restarted as requested by authorized user."
	case t == Redeploy && source == User:
		return "Virtual machine is going to be redeployed as requested by authorized user."
	case t == Redeploy:
		return "Virtual machine has encountered a failure."
	case t == Freeze || t == Reboot:
		return "Host server is undergoing maintenance."
	}
	return ""
}

// newEventID creates a GUID in capitals, as in the documents of the real service.
func newEventID() string { return strings.ToUpper(uuid.NewString()) }

// isGUID reports whether s is a GUID of 36 characters in either letter case.
func isGUID(s string) bool { return len(s) == 36 && uuid.Validate(s) == nil }

// roundUpToSecond returns t, rounded up to a full second. The document has only full seconds, and an event must not
// start before its NotBefore.
func roundUpToSecond(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); whole.Before(t) {
		return whole.Add(time.Second)
	}
	return t.Truncate(time.Second)
}
