package drain

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/slipway-dev/slipway/internal/observe"
)

const (
	// maxLoggedPodBytes limits the pods in one line of the log. A container runtime splits lines longer than 16 KiB.
	maxLoggedPodBytes = 12 << 10
	// maxLoggedTextBytes limits each text of a pod in the log. A webhook's message may have many KiB.
	maxLoggedTextBytes = 300
	// maxLoggedVolumeBytes limits each list of volumes.
	maxLoggedVolumeBytes = 5 << 10
)

// LogMessage is the message of the log lines that Report.Log writes.
const LogMessage = "drain report"

// Log writes the drain report to the log, in as few lines as possible. Each line has the whole report with a part of
// its pods. Only the first line has the volumes.
func (r Report) Log(log *slog.Logger) {
	line := loggedReport{Report: r}
	line.Volumes = r.Volumes.clip()
	size := line.Volumes.countBytes()
	for _, p := range r.Pods {
		raw := p.clipTexts().toJSON()
		if size > 0 && size+len(raw) > maxLoggedPodBytes {
			line.log(log)
			line.Pods, line.Volumes, size = nil, VolumeReport{}, 0
		}
		line.Pods = append(line.Pods, raw)
		size += len(raw)
	}
	line.log(log)
}

// loggedReport is a Report with a part of its pods.
type loggedReport struct {
	Report

	Pods []json.RawMessage `json:"pods"`
}

func (l loggedReport) log(log *slog.Logger) {
	if raw, err := json.Marshal(l); err == nil { // it fails for a deadline after the year 9999
		log.Info(LogMessage, "report", jsonText(raw))
	}
}

// jsonText is JSON for a log. The JSON handler of slog writes it as an object, and the text handler as text.
type jsonText []byte

func (t jsonText) MarshalJSON() ([]byte, error) { return t, nil }
func (t jsonText) MarshalText() ([]byte, error) { return t, nil }

// clip returns the report with short lists and a short text.
func (v VolumeReport) clip() VolumeReport {
	v.Detached, v.Attached = clipNames(v.Detached), clipNames(v.Attached)
	v.Problem = observe.ClipBytes(v.Problem, maxLoggedTextBytes)
	return v
}

// countBytes returns the length of the report in JSON, or a little more. It is 0 without volumes.
func (v VolumeReport) countBytes() int {
	raw, _ := json.Marshal(v)
	return len(raw) - len("{}")
}

// clipNames returns the first names, and as the last one how many more there are.
func clipNames(names []string) []string {
	size := 0
	for i, name := range names {
		if size += len(name) + len(`"",`); size > maxLoggedVolumeBytes {
			return append(names[:i:i], fmt.Sprintf("and %d more", len(names)-i))
		}
	}
	return names
}

// clipTexts returns the pod's report with short texts.
func (p PodReport) clipTexts() PodReport {
	p.Decision.Detail = observe.ClipBytes(p.Decision.Detail, maxLoggedTextBytes)
	clipped := make([]Delay, len(p.Delays))
	for i, d := range p.Delays {
		d.Detail = observe.ClipBytes(d.Detail, maxLoggedTextBytes)
		clipped[i] = d
	}
	p.Delays = clipped
	p.Surge = p.Surge.clipTexts()
	p.EvictionRequest = p.EvictionRequest.clip()
	return p
}

func (p PodReport) toJSON() json.RawMessage {
	raw, err := json.Marshal(p)
	if err != nil { // a time that RFC 3339 cannot express
		p.TerminatingSince, p.EndedAt, p.FirstRequestedAt, p.RemovalRequestedAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		raw, _ = json.Marshal(p)
	}
	return raw
}
