package azure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func injectFaults(t testing.TB, e *Emulator, faults ...Fault) {
	t.Helper()
	must.NoError(t, e.InjectFaults(faults...))
}

// responseHead is a response without its body.
type responseHead struct {
	StatusCode int
	Header     http.Header
}

// sendGet sends a GET that is expected to fail. It returns the part of the body that it could read.
func sendGet(ctx context.Context, t testing.TB, url string) (*responseHead, []byte, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must.NoError(t, err)
	r.Header.Set("Metadata", "true")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read only
	body, err := io.ReadAll(resp.Body)
	return &responseHead{resp.StatusCode, resp.Header}, body, err
}

// sendIgnoringResponse sends a request and ignores the response.
func sendIgnoringResponse(client *http.Client, r *http.Request) error {
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func TestFaultAppliesToThreeResponses(t *testing.T) {
	for _, status := range []int{410, 429, 500, 503} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			e := newEmulator(t, Options{})
			base := serveEmulator(t, e)
			injectFaults(t, e, Fault{Kind: FaultStatus, Status: status, Times: 3, RetryAfter: 1500 * time.Millisecond})
			for range 3 {
				resp, body, err := sendGet(t.Context(), t, base+metadataPath+query)
				if err != nil || resp.StatusCode != status || !json.Valid(body) || resp.Header.Get("Retry-After") != "2" {
					t.Errorf("got %+v with %q, %v", resp, body, err)
				}
			}
			readDocument(t, base) // fails unless the response is the document
			if left := e.Faults(); len(left) != 0 {
				t.Errorf("faults left: %+v", left)
			}
		})
	}
}

func TestFaultsChangeBody(t *testing.T) {
	e := newEmulator(t, Options{})
	base := serveEmulator(t, e)
	record := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})
	_, healthy, err := sendGet(t.Context(), t, base+metadataPath+query)
	must.NoError(t, err)

	t.Run("HTML", func(t *testing.T) {
		injectFaults(t, e, Fault{Kind: FaultHTML})
		resp, body, err := sendGet(t.Context(), t, base+metadataPath+query)
		if err != nil || resp.StatusCode != http.StatusOK || !bytes.HasPrefix(body, []byte("<!DOCTYPE html>")) {
			t.Errorf("got %+v with %q, %v", resp, body, err)
		}
	})
	t.Run("empty", func(t *testing.T) {
		injectFaults(t, e, Fault{Kind: FaultEmpty})
		resp, body, err := sendGet(t.Context(), t, base+metadataPath+query)
		if err != nil || resp.StatusCode != http.StatusOK || len(body) != 0 {
			t.Errorf("got %+v with %q, %v", resp, body, err)
		}
	})
	t.Run("half", func(t *testing.T) {
		injectFaults(t, e, Fault{Kind: FaultHalf})
		_, body, err := sendGet(t.Context(), t, base+metadataPath+query)
		if !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.Equal(body, healthy[:len(healthy)/2]) {
			t.Errorf("got %q, %v", body, err)
		}
	})
	t.Run("huge", func(t *testing.T) {
		injectFaults(t, e, Fault{Kind: FaultHuge})
		_, body, err := sendGet(t.Context(), t, base+metadataPath+query)
		var doc document
		if err != nil || len(body) < DefaultHugeSize || len(body) > DefaultHugeSize*11/10 ||
			json.Unmarshal(body, &doc) != nil || doc.Events[0].EventID != record.EventID {
			t.Errorf("got %d bytes, beginning with %q, %v", len(body), body[:min(len(body), 300)], err)
		}
	})
	t.Run("healthy again", func(t *testing.T) {
		_, body, err := sendGet(t.Context(), t, base+metadataPath+query)
		if err != nil || !bytes.Equal(body, healthy) {
			t.Errorf("got %q, %v, want %q", body, err, healthy)
		}
	})
}

func TestFieldFaultChangesTypeOrValue(t *testing.T) {
	e := newEmulator(t, Options{})
	base := serveEmulator(t, e)
	mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})
	spoiled := func(t *testing.T, field, value string) map[string]any {
		t.Helper()
		f := Fault{Kind: FaultField, Field: field}
		if value != "" {
			f.Value = json.RawMessage(value)
		}
		injectFaults(t, e, f)
		_, body := sendCall(t, "GET", base+metadataPath+query, "")
		var doc map[string]any
		if err := json.Unmarshal([]byte(body), &doc); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return doc
	}
	healthy := func() (doc map[string]any) {
		_, body := sendCall(t, "GET", base+metadataPath+query, "")
		must.NoError(t, json.Unmarshal([]byte(body), &doc))
		return doc
	}()
	// differing returns the fields with a JSON type that differs from the healthy document.
	differing := func(t *testing.T, doc map[string]any) (fields []string) {
		t.Helper()
		kind := func(v any) string {
			text, err := json.Marshal(v)
			must.NoError(t, err)
			return strings.TrimLeft(string(text[:1]), "-0123456789") // all numbers are of the same type
		}
		compare := func(a, b map[string]any) {
			for _, field := range documentFields() {
				if a[field] != nil && kind(a[field]) != kind(b[field]) {
					fields = append(fields, field)
				}
			}
		}
		compare(healthy, doc)
		if events, ok := doc["Events"].([]any); ok {
			compare(healthy["Events"].([]any)[0].(map[string]any), events[0].(map[string]any))
		}
		return fields
	}
	for _, field := range documentFields() {
		t.Run(field, func(t *testing.T) {
			check.Equal(t, []string{field}, differing(t, spoiled(t, field, "")))
		})
	}
	t.Run("all", func(t *testing.T) {
		got := differing(t, spoiled(t, "", ""))
		if want := len(documentFields()) - 1; len(got) != want { // all except the list itself
			t.Errorf("fields of a wrong type: %v, want %d", got, want)
		}
	})
	t.Run("unknown event type", func(t *testing.T) {
		event := spoiled(t, "EventType", `"Explode"`)["Events"].([]any)[0].(map[string]any)
		if event["EventType"] != "Explode" || event["EventStatus"] != "Scheduled" {
			t.Errorf("the document shows the event as %v", event)
		}
	})
}

func TestHangEndsWhenClientGivesUp(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		t.Run(method, func(t *testing.T) {
			e := newEmulator(t, Options{})
			base := serveEmulator(t, e)
			injectFaults(t, e, Fault{Kind: FaultHang})
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, method, base+metadataPath+query, strings.NewReader("{}"))
			must.NoError(t, err)
			if err := sendIgnoringResponse(http.DefaultClient, r); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			readDocument(t, base)
		})
	}
}

// firstWriteSignal is a log that closes a channel at the first write.
type firstWriteSignal struct {
	once sync.Once
	c    chan struct{}
}

func (s *firstWriteSignal) Write(line []byte) (int, error) {
	s.once.Do(func() { close(s.c) })
	return len(line), nil
}

func TestHangEndsWhenEmulatorCloses(t *testing.T) {
	hanging := &firstWriteSignal{c: make(chan struct{})} // only the fault logs here
	e := newEmulator(t, Options{Log: slog.New(slog.NewTextHandler(hanging, nil))})
	base := serveEmulator(t, e)
	injectFaults(t, e, Fault{Kind: FaultHang})
	done := make(chan error, 1)
	go func() {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+metadataPath+query, nil)
		if err == nil {
			err = sendIgnoringResponse(http.DefaultClient, r)
		}
		done <- err
	}()
	<-hanging.c
	e.Close()
	if err := <-done; err == nil {
		t.Error("the request got a response")
	}
}

func TestResetFaultResetsConnection(t *testing.T) {
	e := newEmulator(t, Options{})
	base := serveEmulator(t, e)
	injectFaults(t, e, Fault{Kind: FaultReset})
	// A separate transport, because http.DefaultClient would retry a kept-alive connection.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+metadataPath+query, nil)
	must.NoError(t, err)
	if err := sendIgnoringResponse(client, r); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want ECONNRESET", err)
	}
	readDocument(t, base)
}

func TestFaultsApplyInOrder(t *testing.T) {
	e := newEmulator(t, Options{})
	e.EnsureScaleSet("other")
	base := serveEmulator(t, e)
	injectFaults(t, e,
		Fault{Kind: FaultStatus, Status: 501, Machine: vm1},
		Fault{Kind: FaultStatus, Status: 502, ScaleSet: "OTHER"},
		Fault{Kind: FaultStatus, Status: 503, Method: http.MethodPost},
		Fault{Kind: FaultStatus, Status: 500, ScaleSet: testSet},
		Fault{Kind: FaultNone, ScaleSet: testSet, Times: 2},
		Fault{Kind: FaultStatus, Status: 429, ScaleSet: testSet, Times: 2},
	)
	set := base + "/scalesets/" + testSet
	machine := set + "/virtualMachines/" + strings.ToUpper(vm1)
	var got []int
	for _, url := range []string{
		set, set, set, machine, set, set, set, base + "/scalesets/other", base + "/scalesets/other",
	} {
		status, _ := sendCall(t, http.MethodGet, url+metadataPath+query, "")
		got = append(got, status)
	}
	status, _ := sendCall(t, http.MethodPost, set+metadataPath+query, startRequestBody(newEventID()))
	check.Equal(t, []int{500, 200, 200, 501, 429, 429, 200, 502, 200, 503}, append(got, status))
}

func TestFaultLastsForItsDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEmulator(t, Options{})
		injectFaults(t, e, Fault{Kind: FaultEmpty, For: time.Minute}, Fault{Kind: FaultHTML, For: time.Minute, Times: 1})
		took := func(kind FaultKind) bool {
			f, ok := e.takeRequestFault(faultTarget{method: http.MethodGet})
			return ok && f.Kind == kind
		}
		for range 100 {
			if !took(FaultEmpty) {
				t.Fatal("the fault ended too early")
			}
		}
		time.Sleep(time.Minute - time.Nanosecond)
		if left := e.Faults(); len(left) != 2 || left[0].For != time.Nanosecond || left[1].Times != 1 {
			t.Errorf("faults left: %+v", left)
		}
		if !took(FaultEmpty) {
			t.Error("the fault ended too early")
		}
		time.Sleep(time.Nanosecond)
		if left := e.Faults(); len(left) != 0 {
			t.Errorf("faults left: %+v", left)
		}
	})
}

func TestFaultyApprovalTakesEffectOnlyIfProcessed(t *testing.T) {
	for _, processed := range []bool{false, true} {
		t.Run("processed "+strconv.FormatBool(processed), func(t *testing.T) {
			e := newEmulator(t, Options{})
			base := serveEmulator(t, e)
			record := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})
			injectFaults(t, e, Fault{Kind: FaultStatus, Status: 500, Processed: processed})
			if status, _ := sendCall(t, "POST", base+metadataPath+query, startRequestBody(record.EventID)); status != 500 {
				t.Errorf("status %d", status)
			}
			record, _ = e.State().Event(record.EventID)
			if started := record.Status == Started; started != processed {
				t.Errorf("the event is %s", record.Status)
			}
		})
	}
}

func TestInvalidFaultIsRefused(t *testing.T) {
	e := newEmulator(t, Options{})
	for message, f := range map[string]Fault{
		`kind ""`:       {},
		`kind "bang"`:   {Kind: "bang"},
		"times -1":      {Kind: FaultEmpty, Times: -1},
		"for -1ns":      {Kind: FaultEmpty, For: -1},
		`method "PUT"`:  {Kind: FaultEmpty, Method: "PUT"},
		"status 0":      {Kind: FaultStatus},
		"status 200":    {Kind: FaultStatus, Status: 200},
		"retryAfter":    {Kind: FaultStatus, Status: 429, RetryAfter: -1},
		`field "Colour`: {Kind: FaultField, Field: "Colour"},
		"a value":       {Kind: FaultField, Value: json.RawMessage("1")},
		`value "{"`:     {Kind: FaultField, Field: "Events", Value: json.RawMessage("{")},
		"size -1":       {Kind: FaultHuge, Size: -1},
	} {
		err := e.InjectFaults(Fault{Kind: FaultEmpty}, f)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "fault 1: "+message) {
			t.Errorf("%+v: %v, want %v naming %s", f, err, ErrInvalid, message)
		}
	}
	if left := e.Faults(); len(left) != 0 {
		t.Errorf("valid faults of refused lists were injected: %+v", left)
	}
	injectFaults(t, e, Fault{Kind: FaultEmpty, Times: 7})
	e.ClearFaults()
	if left := e.Faults(); len(left) != 0 {
		t.Errorf("faults left after ClearFaults: %+v", left)
	}
}
