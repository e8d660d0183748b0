package retirement

import (
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func TestRecordStateReportsChangedObstacles(t *testing.T) {
	p := &retirementScope{rt: &v1alpha1.NodeRetirement{}}
	for i, step := range []struct {
		code string
		news bool
	}{
		{"", false},
		{GroupNotReady, true},
		{GroupNotReady, false},
		{CloudBusy, true}, // something else blocked it before
		{CloudBusy, false},
		{"", true},
		{CloudBusy, true},
	} {
		if news := p.recordWaitState(step.code, "message", nil); news != step.news {
			t.Errorf("step %d, %q: changed is %t, want %t", i, step.code, news, step.news)
		}
	}
}
