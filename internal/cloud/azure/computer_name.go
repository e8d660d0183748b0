package azure

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// ParseInstanceNumber returns the instance number from a computer name of a uniform scale set. The last six characters of
// aks-pool-12345678-vmss00000a are the number in base 36, here 10. It only confirms an instance that was found by
// provider ID, see [found.checkComputerNameMatchesID].
func ParseInstanceNumber(scaleSet, computerName string) (number int, ok bool) {
	const digits = 6
	if len(computerName) <= digits {
		return 0, false
	}
	prefix, suffix := computerName[:len(computerName)-digits], computerName[len(computerName)-digits:]
	if !strings.EqualFold(prefix, scaleSet) {
		return 0, false
	}
	n, err := strconv.ParseUint(suffix, 36, 32)
	return int(n), err == nil
}

// checkComputerNameMatchesID returns an error if the computer name has another instance number than the ID: one of the two belongs to
// another instance, and it is unknown which (I4). A computer name without a number, for example with a user's prefix,
// is accepted.
func (m vmInstance) checkComputerNameMatchesID() error {
	if m.id.ScaleSet == "" {
		return nil
	}
	n, tells := ParseInstanceNumber(m.id.ScaleSet, m.ComputerName)
	if !tells || strconv.Itoa(n) == m.id.Name {
		return nil
	}
	return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
		"instance %s: its ID says instance %s, its computer name %s says instance %d: neither is changed",
		m.id, m.id.Name, m.ComputerName, n)}
}
