package wire

import (
	"errors"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
)

func FuzzDecode(f *testing.F) {
	for _, body := range []string{`{"desiredSize":3}`, `{"machineId":"x","decrementDesiredSize":true}`, `{"membershipStatus":{"active":false},"machineId":"m"}`, `null`, `{}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := DecodeSetDesiredSize(raw)
		_, bad := errors.AsType[*BadRequestError](err)
		check.Not(t, err == nil && s.DesiredSize < 0 || err != nil && !bad, "%q: %+v, %v", raw, s, err)
		for _, decode := range []func([]byte) (Removal, error){DecodeTerminate, DecodeDetach} {
			if r, err := decode(raw); err == nil && r.MachineID == "" {
				t.Errorf("%q: %+v", raw, r)
			}
		}
		if m, err := DecodeMembershipStatus(raw); err == nil && m.MachineID == "" {
			t.Errorf("%q: %+v", raw, m)
		}
		if m, err := DecodeServiceState(raw); err == nil && !m.ServiceState.IsKnown() {
			t.Errorf("%q: %+v", raw, m)
		}
	})
}
