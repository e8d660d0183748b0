package cloud

import "testing"

import (
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestBusyProviderLeavesWorkersForOthers(t *testing.T) {
	s := NewWorkerLimiter(4, map[string]Provider{"a": nil, "b": nil})
	first, ok := s.TryAcquire("a")
	_, second := s.TryAcquire("a")
	_, third := s.TryAcquire("a")
	_, other := s.TryAcquire("b")
	check.Not(t, !ok || !second || third || !other, "slots of a: %t, %t, %t; of b: %t; want two of a, and one of b", ok, second, third, other)
	first()
	if _, ok := s.TryAcquire("a"); !ok {
		t.Error("a released slot cannot be acquired")
	}
	var one WorkerLimiter
	if _, ok := one.TryAcquire("a"); !ok {
		t.Error("the zero value has no slot")
	}
	if _, ok := one.TryAcquire("a"); ok {
		t.Error("the zero value has two slots")
	}
}
