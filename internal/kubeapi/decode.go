package kubeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// object is any type of this package that has metadata.
type object interface{ GetMeta() *ObjectMeta }

// listMeta holds the fields of metav1.ListMeta that this package reads.
type listMeta struct {
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
}

// decodeObject decodes one object into out. It returns an error if the object has no name, such as "{}" from a proxy.
// Such an object would look like a node without taints or a claim without a volume (I7: unknown is not gone).
func decodeObject(r io.Reader, out object) error {
	if err := json.NewDecoder(r).Decode(out); err != nil {
		return toUnexpectedEOF(err)
	}
	if out.GetMeta().Name == "" {
		return errors.New("it has no metadata.name")
	}
	return nil
}

// decodeList decodes one page of a list and calls add for each item. So memory holds one item instead of the whole
// page. A truncated page, or JSON that is not a list, is an error and never a shorter list (I7). Before the error, add
// may have been called for some items.
func decodeList[T any](r io.Reader, add func(T)) (listMeta, error) {
	var meta listMeta
	d := json.NewDecoder(r)
	err := decodeMembers(d, func(name string) error {
		switch name {
		case "metadata":
			return d.Decode(&meta)
		case "items":
			return decodeElements(d, add)
		}
		var skipped json.RawMessage
		return d.Decode(&skipped)
	})
	if err != nil {
		return listMeta{}, toUnexpectedEOF(err)
	}
	if meta.ResourceVersion == "" {
		return listMeta{}, errors.New("it is not a list: it has no metadata.resourceVersion")
	}
	return meta, nil
}

// decodeMembers calls value with the name of each member of the next JSON object. value must read the member.
func decodeMembers(d *json.Decoder, value func(name string) error) error {
	if err := expectDelim(d, json.Delim('{')); err != nil {
		return err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		if err := value(name.(string)); err != nil { // the decoder only accepts a string as a member's name
			return err
		}
	}
	return expectDelim(d, json.Delim('}'))
}

// decodeElements decodes the next JSON array and calls add for each element. It accepts null as an empty array, because
// Go encodes a nil slice as null.
func decodeElements[T any](d *json.Decoder, add func(T)) error {
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
	return expectDelim(d, json.Delim(']'))
}

func expectDelim(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err == nil && t != want {
		err = fmt.Errorf("%v: want %v", t, want)
	}
	return err
}

// toUnexpectedEOF returns io.ErrUnexpectedEOF for io.EOF, because the input ended too soon. It returns every other
// error unchanged.
func toUnexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// limitedReader is an io.LimitedReader that returns an error at its limit. So truncated input does not look complete.
type limitedReader struct {
	r    io.Reader
	left int64
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("larger than %d MiB", maxResponseBytes>>20)
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}
