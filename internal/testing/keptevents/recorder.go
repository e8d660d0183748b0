// Package keptevents has an event recorder that keeps only the Events that reach users.
package keptevents

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/reference"
)

// maxActionBytes is the API server's limit for the action of an Event.
const maxActionBytes = 128

// Recorder is an [k8s.io/client-go/tools/events.EventRecorder]. If Events differ only in their notes, it keeps the first, as
// client-go does (v0.37.2, getKey in tools/events/event_broadcaster.go). It drops an Event with an action that the API server
// refuses. Objects need a TypeMeta.
type Recorder struct {
	// Kept has the reason and the note of each kept Event.
	Kept []string

	keys map[string]bool
}

// Eventf implements [k8s.io/client-go/tools/events.EventRecorder].
func (r *Recorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	key := fmt.Sprint(toReference(regarding), toReference(related), eventType, reason, action)
	if r.keys[key] || action == "" || len(action) > maxActionBytes {
		return
	}
	if r.keys == nil {
		r.keys = map[string]bool{}
	}
	r.keys[key] = true
	r.Kept = append(r.Kept, reason+" "+fmt.Sprintf(note, args...))
}

func toReference(o runtime.Object) corev1.ObjectReference {
	if o == nil {
		return corev1.ObjectReference{}
	}
	ref, err := reference.GetReference(nil, o)
	if err != nil {
		panic(err)
	}
	return *ref
}
