package poll

import (
	"net/http"
	"strconv"
	"testing"
	"time"
)

func TestRetryAfterIsReadAsSecondsOrTime(t *testing.T) {
	now := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                    0,
		"3":                   3 * time.Second,
		"-3":                  0,
		"soon":                0,
		strconv.Itoa(1 << 60): 24 * time.Hour,
		now.Add(time.Minute).Format(http.TimeFormat):  time.Minute,
		now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		if got := parseRetryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("Retry-After %q is %v, want %v", value, got, want)
		}
	}
}

func TestClockIsComparedWithDateHeader(t *testing.T) {
	sent := time.Date(2026, 9, 1, 12, 0, 0, 700e6, time.UTC)
	const ms = time.Millisecond
	c := NewClient(ClientOptions{})
	for _, tt := range []struct {
		name        string
		date        time.Time // the service's clock; Date has no fractions
		took        time.Duration
		least, most time.Duration
	}{
		{"the same time", sent, 5 * ms, 0, 0},
		{"a second apart", sent.Add(-time.Second), 5 * ms, 0, 0},
		{"ten minutes ahead", sent.Add(-10 * time.Minute), 5 * ms, 10*time.Minute - time.Second, 10*time.Minute + time.Second},
		{"a response after two minutes changes nothing", sent.Add(-9 * time.Minute), 2 * time.Minute, 10*time.Minute - time.Second, 10*time.Minute + time.Second},
		{"a Date that is years behind is wrong", time.Unix(0, 0).UTC(), 5 * ms, 0, 0},
		{"ten minutes ahead again", sent.Add(-10 * time.Minute), 5 * ms, 10*time.Minute - time.Second, 10*time.Minute + time.Second},
		{"an hour behind", sent.Add(time.Hour), 5 * ms, -time.Hour - time.Second, -time.Hour + time.Second},
	} {
		c.updateClockAhead(sent, sent.Add(tt.took), http.Header{"Date": {tt.date.Format(http.TimeFormat)}})
		if got := c.ClockAhead(); got < tt.least || got > tt.most {
			t.Errorf("%s: %s ahead, want %s to %s", tt.name, got, tt.least, tt.most)
		}
		was := c.ClockAhead()
		for f := range 100 { // an unchanged clock gives no other difference
			shift := time.Duration(f) * 10 * ms
			c.updateClockAhead(sent.Add(shift), sent.Add(shift+tt.took), http.Header{"Date": {tt.date.Add(shift).Format(http.TimeFormat)}})
		}
		if got := c.ClockAhead(); got != was {
			t.Errorf("%s: %s ahead and then %s", tt.name, was, got)
		}
	}
	for _, odd := range []string{"", "yesterday"} {
		was := c.ClockAhead()
		if c.updateClockAhead(sent, sent, http.Header{"Date": {odd}}); c.ClockAhead() != was {
			t.Errorf("Date %q changed it", odd)
		}
	}
}

func TestMetadataRequestsUseNoProxy(t *testing.T) {
	if c := NewClient(ClientOptions{}); c.transport.Proxy != nil {
		t.Error("the transport has a proxy function")
	}
}
