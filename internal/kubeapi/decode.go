package kubeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// object is what every type of this package with metadata is, as a pointer.
type object interface{ GetMeta() *ObjectMeta }

// listMeta is metav1.ListMeta, as far as it is read.
type listMeta struct {
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
}

// decodeObject reads one object whole. Any JSON without a name in it, such as the "{}" of some proxy, is refused: it
// would read as a node without taints or a claim without a volume (I7).
func decodeObject(r io.Reader, out object) error {
	if err := json.NewDecoder(r).Decode(out); err != nil {
		return endedEarly(err)
	}
	if out.GetMeta().Name == "" {
		return errors.New("it holds no metadata.name")
	}
	return nil
}

// decodeList reads a page of a list and hands over its items one by one, so that memory holds one item and not the
// whole page. A page that is cut short, or no list at all, is an error and never a shorter list (I7); by then some
// items may have been handed over.
func decodeList[T any](r io.Reader, add func(T)) (listMeta, error) {
	var meta listMeta
	d := json.NewDecoder(r)
	err := members(d, func(name string) error {
		switch name {
		case "metadata":
			return d.Decode(&meta)
		case "items":
			return elements(d, add)
		}
		var skipped json.RawMessage
		return d.Decode(&skipped)
	})
	if err != nil {
		return listMeta{}, endedEarly(err)
	}
	if meta.ResourceVersion == "" {
		return listMeta{}, errors.New("it is no list: it holds no metadata.resourceVersion")
	}
	return meta, nil
}

// members calls value for each member of the JSON object that comes next; value must read it.
func members(d *json.Decoder, value func(name string) error) error {
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		if err := value(name.(string)); err != nil { // the decoder lets nothing but a string be a member's name
			return err
		}
	}
	return expect(d, json.Delim('}'))
}

// elements decodes the JSON array that comes next; null is an empty one, as it is in a list that Go encoded.
func elements[T any](d *json.Decoder, add func(T)) error {
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t == nil:
		return nil
	case t != json.Delim('['):
		return fmt.Errorf("items: %v: want an array", t)
	}
	for d.More() {
		var item T
		if err := d.Decode(&item); err != nil {
			return err
		}
		add(item)
	}
	return expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err == nil && t != want {
		err = fmt.Errorf("%v: want %v", t, want)
	}
	return err
}

// endedEarly makes the end of the input an error by name: here it always comes too soon.
func endedEarly(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// limited is an io.LimitedReader whose end is an error, so that what was cut off cannot pass for the whole.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("larger than %d MiB", maxAnswer>>20)
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}
