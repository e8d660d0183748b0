package saved

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
)

// Format is a file format of a cluster. Decode detects it.
type Format int

const (
	// Compact is read many times faster than JSON. Its first line names the version. Then come frames, each with
	// objects of one kind as protocol buffers, and can be decoded in parallel. The last frame is empty and
	// has kind end, so that a truncated file is detected.
	Compact Format = iota
	// JSON is one document, for people and other tools.
	JSON
)

const compactHeader = "slipway.dev/snapshot v1\n"

// WriteReduced writes what placement reads from the objects. It omits everything else, so that the file reveals nothing that
// is not needed.
func (o *Objects) WriteReduced(w io.Writer, format Format) error {
	reduced := new(redactor).copyObjects(o)
	write := reduced.writeCompact
	if format == JSON {
		write = func(w io.Writer) error { return json.NewEncoder(w).Encode(reduced) }
	}
	if err := write(w); err != nil {
		return fmt.Errorf("write the saved cluster: %w", err)
	}
	return nil
}

// Decode reads a cluster that WriteReduced has written, in any format. The resulting objects do not refer to raw.
func Decode(raw []byte) (*Objects, error) {
	o := &Objects{}
	var err error
	if body, ok := bytes.CutPrefix(raw, []byte(compactHeader)); ok {
		err = o.decodeCompact(body)
	} else if version, ok := bytes.CutPrefix(raw, []byte("slipway.dev/snapshot ")); ok {
		line, _, _ := bytes.Cut(version[:min(len(version), 20)], []byte("\n"))
		err = fmt.Errorf("version %q is not supported: this slipway reads v1", line)
	} else {
		err = o.decodeJSON(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("read the saved cluster: %w", err)
	}
	return o, nil
}

func (o *Objects) decodeJSON(raw []byte) error {
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(o); err != nil {
		return err
	}
	for _, s := range o.listSections() {
		if i := s.findNil(); i >= 0 {
			return fmt.Errorf("%s number %d is null", s.name, i)
		}
	}
	return nil
}

// kindNumber identifies the kind of a frame. The numbers belong to version 1 and must not change.
type kindNumber uint64

const (
	endFrame  kindNumber = 0
	timeFrame kindNumber = 1
)

// section reads and writes the objects of one kind in a compact file.
type section struct {
	kind kindNumber
	name string
	// findNil returns the index of a nil object, or a negative number.
	findNil func() int
	// encode appends the frames of all objects. decode reads the objects of one frame; call the returned functions in
	// the order of the frames.
	encode func(w *frameWriter) error
	decode func(frame []byte, count int) (place func(), err error)
}

func (o *Objects) listSections() []section {
	return []section{
		newSection[corev1.Namespace](2, "namespace", &o.Namespaces),
		newSection[corev1.Node](3, "node", &o.Nodes),
		newSection[corev1.Pod](4, "pod", &o.Pods),
		newSection[policyv1.PodDisruptionBudget](5, "budget", &o.PDBs),
		newSection[corev1.PersistentVolumeClaim](6, "claim", &o.Claims),
		newSection[corev1.PersistentVolume](7, "volume", &o.Volumes),
		newSection[storagev1.StorageClass](8, "storage class", &o.StorageClasses),
		newSection[storagev1.CSINode](9, "CSI node", &o.CSINodes),
		newSection[storagev1.CSIDriver](10, "CSI driver", &o.CSIDrivers),
		newSection[storagev1.VolumeAttachment](11, "attachment", &o.Attachments),
		newSection[resourcev1.DeviceClass](12, "device class", &o.DeviceClasses),
		newSection[schedulingv1beta1.PodGroup](13, "PodGroup", &o.PodGroups),
	}
}

// protobufMessage is the protocol buffer interface of the Kubernetes API types.
type protobufMessage[T any] interface {
	*T
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// maxExpansion limits the bytes of memory per byte of a frame, before its objects are read. Frames of WriteReduced need
// at most 19, for a Pod without content.
const maxExpansion = 32

func newSection[T any, M protobufMessage[T]](kind kindNumber, name string, list *[]*T) section {
	return section{
		kind: kind, name: name,
		findNil: func() int { return slices.Index(*list, nil) },
		encode: func(w *frameWriter) error {
			for _, item := range *list {
				raw, err := M(item).Marshal()
				if err != nil {
					return err
				}
				if err := w.bufferObject(kind, raw); err != nil {
					return err
				}
			}
			return w.flushFrame()
		},
		decode: func(frame []byte, count int) (func(), error) {
			if uint64(count)*uint64(reflect.TypeFor[T]().Size()) > maxExpansion*uint64(len(frame)) {
				return nil, fmt.Errorf("a frame of %d bytes claims %d objects (%s): no such object is that small", len(frame), count, name)
			}
			items := make([]T, count)
			for i := range items {
				raw, rest, err := cutLengthPrefixed(frame)
				if err != nil {
					return nil, err
				}
				if err := M(&items[i]).Unmarshal(raw); err != nil {
					return nil, err
				}
				frame = rest
			}
			if len(frame) > 0 {
				return nil, errors.New("a frame is longer than its objects")
			}
			return func() {
				for i := range items {
					*list = append(*list, &items[i])
				}
			}, nil
		},
	}
}

// frameWriter collects objects of one kind into frames.
type frameWriter struct {
	w     io.Writer
	kind  kindNumber
	count int
	body  []byte
}

// maxFrameBytes is the size at which a frame is written.
const maxFrameBytes = 512 << 10

func (f *frameWriter) bufferObject(kind kindNumber, raw []byte) error {
	f.kind = kind
	f.count++
	f.body = append(binary.AppendUvarint(f.body, uint64(len(raw))), raw...)
	if len(f.body) < maxFrameBytes {
		return nil
	}
	return f.flushFrame()
}

func (f *frameWriter) flushFrame() error {
	if f.count == 0 {
		return nil
	}
	head := binary.AppendUvarint(nil, uint64(f.kind))
	head = binary.AppendUvarint(head, uint64(f.count))
	head = binary.AppendUvarint(head, uint64(len(f.body)))
	_, err := f.w.Write(append(head, f.body...))
	f.count, f.body = 0, f.body[:0]
	return err
}

func (o *Objects) writeCompact(w io.Writer) error {
	if _, err := io.WriteString(w, compactHeader); err != nil {
		return err
	}
	f := &frameWriter{w: w}
	when, err := o.Time.MarshalBinary()
	if err != nil {
		return err
	}
	if err := errors.Join(f.bufferObject(timeFrame, when), f.flushFrame()); err != nil {
		return err
	}
	for _, s := range o.listSections() {
		if err := s.encode(f); err != nil {
			return err
		}
	}
	_, err = w.Write([]byte{byte(endFrame), 0, 0})
	return err
}

// cutLengthPrefixed removes one length-prefixed part from the start of raw.
func cutLengthPrefixed(raw []byte) (text, rest []byte, err error) {
	size, n := binary.Uvarint(raw)
	if n <= 0 || size > uint64(len(raw)-n) {
		return nil, nil, io.ErrUnexpectedEOF
	}
	return raw[n : n+int(size)], raw[n+int(size):], nil
}

// frame is a part of a compact file, and its decoded objects.
type frame struct {
	kind          kindNumber
	count         int
	body          []byte
	appendObjects func()
	err           error
}

func splitFrames(raw []byte) ([]frame, error) {
	var frames []frame
	for {
		kind, n := binary.Uvarint(raw)
		if n <= 0 {
			return nil, io.ErrUnexpectedEOF
		}
		count, m := binary.Uvarint(raw[n:])
		if m <= 0 {
			return nil, io.ErrUnexpectedEOF
		}
		body, rest, err := cutLengthPrefixed(raw[n+m:])
		switch {
		case err != nil:
			return nil, err
		case kind == uint64(endFrame) && len(rest) > 0:
			return nil, fmt.Errorf("%d bytes after the end frame", len(rest))
		case kind == uint64(endFrame):
			return frames, nil
		case count > uint64(len(body)/2): // no object is empty, and each has its length before it
			return nil, fmt.Errorf("a frame of %d bytes claims %d objects", len(body), count)
		}
		frames = append(frames, frame{kind: kindNumber(kind), count: int(count), body: body})
		raw = rest
	}
}

// decodeCompact decodes the frames in parallel.
func (o *Objects) decodeCompact(raw []byte) error {
	frames, err := splitFrames(raw)
	if err != nil {
		return err
	}
	decoders := map[kindNumber]func([]byte, int) (func(), error){timeFrame: o.decodeTime}
	for _, s := range o.listSections() {
		decoders[s.kind] = s.decode
	}
	var wait sync.WaitGroup
	work := make(chan *frame)
	for range min(runtime.GOMAXPROCS(0), len(frames)) {
		wait.Go(func() {
			for f := range work {
				if decode := decoders[f.kind]; decode != nil {
					f.appendObjects, f.err = decode(f.body, f.count)
				} else {
					f.err = fmt.Errorf("frame kind %d is not known", f.kind)
				}
			}
		})
	}
	for i := range frames {
		work <- &frames[i]
	}
	close(work)
	wait.Wait()
	for i := range frames {
		if frames[i].err != nil {
			return frames[i].err
		}
		frames[i].appendObjects()
	}
	return nil
}

func (o *Objects) decodeTime(body []byte, _ int) (func(), error) {
	raw, _, err := cutLengthPrefixed(body)
	if err != nil {
		return nil, err
	}
	var when time.Time
	if err := when.UnmarshalBinary(raw); err != nil {
		return nil, err
	}
	return func() { o.Time = when }, nil
}
