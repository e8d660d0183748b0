package externalgrpc

import (
	"encoding/base64"
	"fmt"
	"math"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// field is one field of a protocol buffer message in its encoded form.
type field struct {
	number protowire.Number
	raw    []byte // for type bytes
	value  uint64 // for type varint
}

type fields []field

// parseFields parses the fields of a protocol buffer message. It supports only the types varint and bytes, because
// requests have no others.
func parseFields(raw []byte) (fields, error) {
	var all fields
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		raw = raw[n:]
		f := field{number: number}
		switch kind {
		case protowire.VarintType:
			f.value, n = protowire.ConsumeVarint(raw)
		case protowire.BytesType:
			f.raw, n = protowire.ConsumeBytes(raw)
		default:
			return nil, fmt.Errorf("field %d has the unexpected type %d", number, kind)
		}
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		raw = raw[n:]
		all = append(all, f)
	}
	return all, nil
}

func (fs fields) lastField(n protowire.Number) (f field) {
	for _, field := range fs {
		if field.number == n {
			f = field
		}
	}
	return f
}

func (fs fields) text(n protowire.Number) string  { return string(fs.lastField(n).raw) }
func (fs fields) bytes(n protowire.Number) []byte { return fs.lastField(n).raw }
func (fs fields) number(n protowire.Number) int   { return int(int64(fs.lastField(n).value)) }

func (fs fields) allBytes(n protowire.Number) (raws [][]byte) {
	for _, f := range fs {
		if f.number == n {
			raws = append(raws, f.raw)
		}
	}
	return raws
}

func appendText(to []byte, n protowire.Number, text string) []byte {
	return appendMessage(to, n, []byte(text))
}

func appendMessage(to []byte, n protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, n, protowire.BytesType), m)
}

func appendInt(to []byte, n protowire.Number, i int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, n, protowire.VarintType), uint64(i))
}

func appendFloat(to []byte, n protowire.Number, f float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(to, n, protowire.Fixed64Type), math.Float64bits(f))
}

// WriteThrottled responds that the client must retry after the given duration. It uses gRPC's standard form: a
// google.rpc.Status with a google.rpc.RetryInfo.
func WriteThrottled(w http.ResponseWriter, after time.Duration) {
	retry := appendMessage(nil, 1, appendInt(nil, 1, int(after/time.Second)))
	detail := appendMessage(appendText(nil, 1, "type.googleapis.com/google.rpc.RetryInfo"), 2, retry)
	status := appendMessage(appendText(appendInt(nil, 1, Unavailable), 2, "later"), 3, detail)
	w.Header().Set(http.TrailerPrefix+"Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(status))
	WriteResponse(w, nil, Unavailable, "later")
}
