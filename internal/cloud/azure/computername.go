package azure

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// ComputerNumber reads the instance of a uniform scale set from the name that its machine and node have: the last six
// characters of aks-pool-12345678-vmss00000a are its number in base 36, here 10. It is a cross-check of a machine that
// was found by its provider ID, see [found.crossCheck], and never the way to find one.
func ComputerNumber(scaleSet, computerName string) (int, bool) {
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

// crossCheck refuses an instance of a uniform scale set whose computer name tells another number than its ID does: one of the
// two is another machine's, and it is not known which (I4). A name that tells none, such as one with a prefix of the user's,
// is no contradiction.
func (m found) crossCheck() error {
	if m.id.ScaleSet == "" {
		return nil
	}
	n, tells := ComputerNumber(m.id.ScaleSet, m.ComputerName)
	if !tells || strconv.Itoa(n) == m.id.Name {
		return nil
	}
	return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(
		"machine %s: it is instance %s, and its computer name %s is that of instance %d: nothing is done to either",
		m.id, m.id.Name, m.ComputerName, n)}
}
