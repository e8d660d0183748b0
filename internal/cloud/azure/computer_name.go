package azure

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// ParseInstanceNumber returns the instance number in a computer name of a uniform scale set. The last six characters of
// aks-pool-12345678-vmss00000a are the number in base 36, here 10. The number only confirms an instance that was found
// by provider ID, see [vmInstance.checkComputerNameMatchesID].
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

// checkComputerNameMatchesID returns an error if the computer name and the provider ID have different instance numbers.
// One of them belongs to another instance, and it is unknown which one. Only the instance of the drained node may be
// deleted (I4). A computer name without a number is accepted, for example a name with a user's prefix.
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
