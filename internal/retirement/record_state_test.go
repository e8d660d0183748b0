package retirement

import (
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func TestWhatHoldsARetirementUpIsNewsWhenItChanges(t *testing.T) {
	p := &passage{rt: &v1alpha1.NodeRetirement{}}
	for i, step := range []struct {
		code string
		news bool
	}{
		{"", false},
		{GroupNotJudged, true},
		{GroupNotJudged, false},
		{CloudBusy, true}, // it was held up before, by something else
		{CloudBusy, false},
		{"", true},
		{CloudBusy, true},
	} {
		if news := p.note(step.code, "message", nil); news != step.news {
			t.Errorf("step %d, %q: news is %t, want %t", i, step.code, news, step.news)
		}
	}
}
