package azure

import (
	"fmt"
	"maps"
	"slices"
)

// scenarios holds typical events of the real service. An event that scheduled-events-mock-server also has uses its
// type, source, description and duration.
var scenarios = map[string]Announcement{
	"live-migration": {
		Type: Freeze, Source: Platform, DurationSeconds: new(5),
		Description: new("Virtual machine is being paused because of a memory-preserving Live Migration operation."),
	},
	"host-maintenance": {Type: Freeze, Source: Platform, DurationSeconds: new(9)},
	"user-reboot":      {Type: Reboot, Source: User},
	"user-redeploy":    {Type: Redeploy, Source: User},
	"redeploy":         {Type: Redeploy, Source: Platform},
	"spot-eviction":    {Type: Preempt, Source: Platform},
	"scale-in":         {Type: Terminate, Source: User},
	"hardware-failure": {
		Type: Reboot, Source: Platform, Status: Started,
		Description: new("Host server is undergoing an emergency repair."),
	},
}

// ScenarioNames lists the scenarios in alphabetical order.
func ScenarioNames() []string { return slices.Sorted(maps.Keys(scenarios)) }

// NewScenario returns the announcement of a scenario for the given resources. For an unknown name it returns
// ErrInvalid.
func NewScenario(name string, resources ...string) (Announcement, error) {
	a, ok := scenarios[name]
	if !ok {
		return Announcement{}, fmt.Errorf("scenario %q is %w: want one of %v", name, ErrInvalid, ScenarioNames())
	}
	a.Resources = resources
	return a, nil
}
