package azure

import (
	"fmt"
	"maps"
	"slices"
)

// scenarios are typical events of the real service. Those with a twin in scheduled-events-mock-server have its type,
// source, description and duration.
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

// ScenarioNames lists what Scenario knows, in alphabetical order.
func ScenarioNames() []string { return slices.Sorted(maps.Keys(scenarios)) }

// Scenario gives the announcement of a typical event of the real service. An unknown name is ErrInvalid.
func Scenario(name string, resources ...string) (Announcement, error) {
	a, ok := scenarios[name]
	if !ok {
		return Announcement{}, fmt.Errorf("scenario %q is %w: want one of %v", name, ErrInvalid, ScenarioNames())
	}
	a.Resources = resources
	return a, nil
}
