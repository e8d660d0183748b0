package azure

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// EventType is the impact an event will have, in the words of Scheduled Events.
type EventType string

// The five event types of api-version 2020-07-01.
const (
	// Freeze pauses the machine for some seconds; nothing is lost.
	Freeze EventType = "Freeze"
	// Reboot restarts the machine.
	Reboot EventType = "Reboot"
	// Redeploy restarts the machine on another host; its ephemeral disks are lost.
	Redeploy EventType = "Redeploy"
	// Preempt takes a Spot machine away.
	Preempt EventType = "Preempt"
	// Terminate deletes the machine.
	Terminate EventType = "Terminate"
)

// EventTypes lists the known types.
func EventTypes() []EventType { return []EventType{Freeze, Reboot, Redeploy, Preempt, Terminate} }

// MinimumNotice is the least time between an event's appearance and its NotBefore, as documented for its type; for
// Terminate, which is set on the scale set to 5 to 15 minutes, the least of these.
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

// returns reports whether a machine lives on after an event of this type.
func (t EventType) returns() bool { return t != Preempt && t != Terminate }

// cutsPower reports whether an event of this type takes the machine down, for a while or for good.
func (t EventType) cutsPower() bool { return t != Freeze }

// EventStatus is how far an event has come.
type EventStatus string

// The two statuses that a document shows.
const (
	Scheduled EventStatus = "Scheduled"
	Started   EventStatus = "Started"
)

// EventSource is who asked for the event.
type EventSource string

// The two sources of an event.
const (
	Platform EventSource = "Platform"
	User     EventSource = "User"
)

// UnknownDuration is the DurationInSeconds of an event whose duration is unknown or does not apply.
const UnknownDuration = -1

// Announcement is an event to be. Only Type and Resources are required.
type Announcement struct {
	// ScaleSet names the scale set in whose document the event is listed. When empty it is told from the resources'
	// names ("aks-spot-12345678-vmss_3"), or is the only one there is.
	ScaleSet string
	// EventID is a GUID in either letter case; when empty one is made, in capitals.
	EventID string
	Type    EventType
	// Resources are the names of the machines that the event concerns, as the document shall show them.
	Resources []string
	// Status is Scheduled when empty. Started is a hardware failure: no notice is given.
	Status EventStatus
	// Notice is the time until NotBefore. When both are left out, it is the notice configured for the type.
	Notice time.Duration
	// NotBefore is rounded up to a full second. One in the past starts the event at once.
	NotBefore time.Time
	// Source is Platform when empty.
	Source EventSource
	// Description is what Azure usually says for type and source when nil.
	Description *string
	// DurationSeconds is what the document says of the duration: -1 is unknown, 0 no impact. When nil it is 5 for a
	// Freeze and unknown for the others.
	DurationSeconds *int
	// Outage is how long the machines are really away in a Freeze, Reboot or Redeploy. When zero it is DurationSeconds
	// where that is known, or the configured Options.Outage.
	Outage time.Duration
}

// Problems that make an announcement unusable, for errors.Is.
var (
	ErrInvalid         = errors.New("not usable")
	ErrUnknownScaleSet = errors.New("no such scale set")
	ErrDuplicateEvent  = errors.New("event already exists")
)

// validate names the first field that is wrong, its value, and what is allowed.
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
		return fmt.Errorf("notice %v beside notBefore %v is %w: give one of them", a.Notice, a.NotBefore, ErrInvalid)
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
			return fmt.Errorf("resources[%d] %q is %w: it is in the list already", i, name, ErrInvalid)
		}
		seen[strings.ToLower(name)] = true
	}
	return nil
}

// description is what Azure usually says of an event; the wording is from the documentation's list of examples and
// from the scenarios of scheduled-events-mock-server.
func description(t EventType, source EventSource) string {
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

// newEventID makes a GUID in capitals, as the documents of the real service show them.
func newEventID() string { return strings.ToUpper(uuid.NewString()) }

// isGUID reports whether s is a GUID in its 36-character form, in either letter case.
func isGUID(s string) bool { return len(s) == 36 && uuid.Validate(s) == nil }

// roundUp gives the first full second that is not before t: a document cannot say more, and an event must not start
// before the NotBefore it shows.
func roundUp(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); whole.Before(t) {
		return whole.Add(time.Second)
	}
	return t.Truncate(time.Second)
}
