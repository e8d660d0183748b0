// Package gcp reads notices from Google Cloud: from the metadata server of a Compute Engine VM ([NewSources]), and from
// the labels and taints that GKE sets on its Nodes ([NodeSource]).
//
// Facts about the metadata server are from Google's pages "Set and query VM metadata", "Get a live migration notice" and
// "Monitor and plan for a host maintenance event". Each key concerns only the VM itself. The server gives a warning of
// 60 s only if the key maintenance-event was read at least once since the last event. So the sources always read all keys.
//
// The package is linked into the node agent. It uses only the standard library, to save memory.
package gcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// Names of the sources, as in [notice.Notice.Source]. Each key of the metadata server has its own source, so that a key
// that cannot be read says nothing about the notices of the others.
const (
	PreemptionSource  = "gce-spot"
	MaintenanceSource = "gce-host"
	PlannedSource     = "gce-planned"
)

// IDs of the notices. A VM has at most one notice of each key at a time.
const (
	preemptionID  = "preempted"
	maintenanceID = "maintenance-event"
	plannedID     = "upcoming-maintenance"
)

// maintenanceNotice is how long before its begin the server announces a maintenance in the key maintenance-event.
// (https://cloud.google.com/compute/docs/instances/getting-live-migration-notice)
const maintenanceNotice = time.Minute

// gpuMaintenanceNotice is how long before its begin a maintenance is announced for a VM with GPUs. A maintenance that is
// planned to begin within this time is the maintenance of the key maintenance-event.
const gpuMaintenanceNotice = time.Hour + 5*time.Minute

// noMaintenance is the value of a key without a maintenance.
const noMaintenance = "NONE"

// errNoInformation means that the server has no information about a key. Most VMs have no planned maintenance, so this is
// normal. It begins and ends no notice.
var errNoInformation = errors.New("the metadata server has no information about this key")

// parsePreempted parses the key instance/preempted.
func parsePreempted(value string) (on bool, err error) {
	switch strings.ToUpper(value) {
	case "TRUE":
		return true, nil
	case "FALSE":
		return false, nil
	}
	return false, fmt.Errorf("instance/preempted: %s: want TRUE or FALSE", poll.Quote(value))
}

// parseMaintenanceEvent parses the key instance/maintenance-event. It returns an empty type for NONE. An unknown value that
// names a host maintenance counts as a stop of the VM, and causes a warning.
func parseMaintenanceEvent(value string) (kind notice.Type, warning, err error) {
	const allowed = "want NONE, MIGRATE_ON_HOST_MAINTENANCE or TERMINATE_ON_HOST_MAINTENANCE"
	switch v := strings.ToUpper(value); {
	case v == "NONE":
		return "", nil, nil
	case v == "MIGRATE_ON_HOST_MAINTENANCE":
		return notice.Freeze, nil, nil
	case v == "TERMINATE_ON_HOST_MAINTENANCE", v == "SHUTDOWN_ON_HOST_MAINTENANCE":
		return notice.Redeploy, nil, nil
	case len(v) <= 64 && strings.HasSuffix(v, "_ON_HOST_MAINTENANCE"):
		return notice.Redeploy, fmt.Errorf("instance/maintenance-event: %s: %s; assuming that the VM stops", poll.Quote(value), allowed), nil
	}
	return "", nil, fmt.Errorf("instance/maintenance-event: %s: %s", poll.Quote(value), allowed)
}

// plannedMaintenance is a maintenance that Google has planned ahead.
type plannedMaintenance struct {
	// Start is the begin of the maintenance window; zero if it is unknown.
	Start time.Time
	// End is the end of the maintenance window; zero if it is unknown.
	End time.Time
	// Ongoing means that the maintenance has begun. The VM may still run for some minutes.
	Ongoing bool
	// Fixed means that the maintenance cannot be started earlier.
	Fixed    bool
	Reasons  string
	Warnings []error
}

// windowEnd returns the end of the maintenance window. If the end is unknown or wrong, it returns the start, which is zero if
// it is unknown too.
func (m *plannedMaintenance) windowEnd() time.Time {
	if m.End.Before(m.Start) {
		return m.Start
	}
	return m.End
}

// parsePlannedMaintenance parses a description of a planned maintenance. It returns nil if there is none. The metadata
// server spells the fields in snake case, with booleans as strings. The API, and GKE's annotation, spell them in camel
// case. Every field is optional: a maintenance of unknown time counts as due.
func parsePlannedMaintenance(path, value string) (*plannedMaintenance, error) {
	if value == noMaintenance || value == `"NONE"` {
		return nil, nil
	}
	var top any
	if err := json.Unmarshal([]byte(value), &top); err != nil {
		return nil, fmt.Errorf("%s: %s: want JSON or NONE", path, poll.Quote(value))
	}
	fields, isObject := top.(map[string]any)
	for isObject && len(fields) == 1 { // Google's page shows the object inside of another one
		inner, nested := soleValue(fields).(map[string]any)
		if !nested {
			break
		}
		fields = inner
	}
	switch {
	case !isObject:
		return nil, fmt.Errorf("%s: %s: want an object or NONE", path, poll.Quote(value))
	case len(fields) == 0:
		return nil, nil
	}
	known := map[string]any{}
	for key, v := range fields {
		known[strings.ToLower(strings.ReplaceAll(key, "_", ""))] = v
	}
	return readPlannedMaintenance(path, value, known)
}

func soleValue(fields map[string]any) any {
	for _, v := range fields {
		return v
	}
	return nil
}

// readPlannedMaintenance reads the fields of a planned maintenance. The keys are in lower case, without underscores.
func readPlannedMaintenance(path, value string, fields map[string]any) (*plannedMaintenance, error) {
	isKnown := false
	for _, key := range []string{"windowstarttime", "starttime", "latestwindowstarttime", "windowendtime", "maintenancestatus", "canreschedule", "maintenancereasons"} {
		_, has := fields[key]
		isKnown = isKnown || has
	}
	switch {
	case !isKnown && fields["error"] != nil:
		return nil, errNoInformation
	case !isKnown:
		return nil, fmt.Errorf("%s: %s: want an object with window_start_time", path, poll.Quote(value))
	}
	m := &plannedMaintenance{Fixed: strings.EqualFold(fmt.Sprint(fields["canreschedule"]), "false")}
	switch status := fmt.Sprint(fields["maintenancestatus"]); {
	case strings.EqualFold(status, "COMPLETE"), strings.EqualFold(status, "COMPLETED"):
		return nil, nil
	case strings.EqualFold(status, "ONGOING"):
		m.Ongoing = true
	case !strings.EqualFold(status, "PENDING"):
		m.Warnings = append(m.Warnings, fmt.Errorf("%s: maintenance_status: %s: want PENDING, ONGOING or COMPLETE; assuming PENDING", path, poll.Quote(status)))
	}
	start, has := fields["windowstarttime"]
	if !has {
		start = fields["starttime"]
	}
	var err error
	if m.Start, err = poll.ParseTime(start); err != nil && !m.Ongoing {
		m.Warnings = append(m.Warnings, fmt.Errorf("%s: window_start_time: %w; assuming that the maintenance is due", path, err))
	}
	m.End, _ = poll.ParseTime(fields["windowendtime"]) // zero if it is missing or unreadable
	var reasons []string
	list, _ := fields["maintenancereasons"].([]any)
	for _, r := range list {
		if text, ok := r.(string); ok && len(reasons) < 8 {
			reasons = append(reasons, text[:min(len(text), 64)])
		}
	}
	m.Reasons = strings.Join(reasons, ", ")
	return m, nil
}
