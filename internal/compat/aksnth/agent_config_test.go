package aksnth

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestFlagsSetAgentConfig(t *testing.T) {
	o := mustParse(t, "-dryRun", "-exitAfterNodeDrain", "-disableEviction", "-maxConcurrentDrains=2", "-namespace=slipway", "-gracePeriodSeconds=3")
	c := o.ToAgentConfig()
	check.Is(t, true, c.DryRun)
	check.Is(t, true, c.ExitAfterDrain)
	check.Is(t, true, c.DisableEviction)
	check.Is(t, 2, c.MaxConcurrentDrains)
	check.Is(t, "slipway", c.Namespace)
	check.Is(t, 3*time.Second, c.StopGrace)
}
