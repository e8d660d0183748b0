package storm

import "testing"

func TestNoticesAreSpreadOverScaleSetsAndLeaveOthers(t *testing.T) {
	for _, size := range []int{10, 50, 100, 150, 200, 370, maxSize} {
		s := &stormBench{size: size}
		sum := 0
		for i := range s.scaleSetCount() {
			n := s.noticedIn(i)
			if n > machinesEach {
				t.Errorf("size %d: scale set %d has %d notices, want at most %d", size, i, n, machinesEach)
			}
			sum += n
		}
		if sum != size || s.machineCount()-size < minOtherMachines {
			t.Errorf("size %d: %d notices for %d machines, want %d and at least %d without", size, sum, s.machineCount(), size, minOtherMachines)
		}
	}
}
