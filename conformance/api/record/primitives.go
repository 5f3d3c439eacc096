package main

import (
	"encoding/json"
	"math/rand"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

type quantityRow struct {
	In        string `json:"in"`
	Error     string `json:"error,omitempty"`
	Out       string `json:"out,omitempty"`
	Canonical string `json:"canonical,omitempty"`
	Format    string `json:"format,omitempty"`
	Value     int64  `json:"value"`
	Milli     int64  `json:"milli"`
	Plain     string `json:"plain,omitempty"`
}

// quantityInputs are hand-picked oddities, every suffix with various mantissas, and seeded random spellings.
func quantityInputs() []string {
	in := []string{
		"", "0", "00", "-0", "+0", "+", "-", ".", "+.", "0.", ".0", "1.", ".5", "-.5", "+5", "-5", "010", "1.500", "1.001", "0.001", "1000m", "1024Ki",
		"0.5Gi", "1.5", "1.5Gi", "1.1Ki", "0.1Ki", "0.0001Ki", "1.0Ki", "1e3", "1E3", "1e-3", "12e6", "1e", "1e+2", "1.5e3", "1e1.5", "0.1n", "0.1m",
		"-0.1n", "1n", "999n", "1000n", "1u", "100u", "1k", "1000k", "1M", "1000M", "1G", "1000E", "1E", "999E", "1T", "1P", "10P", "8Ei", "7Ei", "9Ei", "-9Ei", "16Ei",
		"1Ei", "1023Ki", "1025Ki", "512", "1Ki", "8Ki", "16Ki", "1000Ki", "1048576Ki", "123456789012345678", "1234567890123456789", "9223372036854775807",
		"9223372036854775808", "-9223372036854775808", "12345678901234567890", "123456789012345678901234567", "1.123456789", "1.1234567891", "1.0000000001",
		"0.000000001", "0.0000000001", "100000000000000000000", "1e18", "1e19", "1e20", "1e21", "1e30", "1e-9", "1e-10", "1e-20", "5e-10", "3e100", "1mm", "1Kii",
		"1K", "1ki", "1 ", " 1", "1Gib", "abc", "--1", "+-1", "1_000", "0x10", "1i", "1nn", "1e3e3", "1E+", "1e-", "1m1", "1Mi2", "1..2", "1.2.3", "１",
		"3.14159265358979323846", "2.718281828459045e2", "1.25Ei", "1.999999999999999999Ei", "0.99999999999999999999Ki", "1100", "1100m", "1500k", "0.0015k", "10000000000000000000n",
		"1e2147483647", "1e4294967296", "1e9223372036854775808", "0Ki", "0m", "0e5", "00100m", "00.5", "-1.5Gi", "-1500m", "-512", "-1025", "-2Ki",
		"4294967296", "1099511627776", "17179869184Ki", "131072Mi", "64Gi", "3800m", "15.5Gi", "100Mi", "250m", "110", "0.25", "2.5", "1.75Ti", "1.0", "1.00", "1.000", "1.0000", "10.000",
	}
	for _, s := range []string{"", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "e-3", "E2", "e7", "e-7"} {
		for _, m := range []string{"1", "10", "1000", "1024", "123", "1.5", "0.5", "0.123", "2048.25", "-7", "999999", "123456789012"} {
			in = append(in, m+s)
		}
	}
	r := rand.New(rand.NewSource(20261115))
	alphabet := "0123456789.+-eEinumkKMGTP"
	suffixes := []string{"", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e5", "e-4", "E11"}
	for i := 0; i < 250; i++ {
		whole, fraction := digits(r, r.Intn(20)), ""
		if r.Intn(2) == 0 {
			fraction = "." + digits(r, r.Intn(12))
		}
		in = append(in, []string{"", "", "-", "+"}[r.Intn(4)]+whole+fraction+suffixes[r.Intn(len(suffixes))])
	}
	for i := 0; i < 120; i++ {
		var b strings.Builder
		for j := 1 + r.Intn(6); j > 0; j-- {
			b.WriteByte(alphabet[r.Intn(len(alphabet))])
		}
		in = append(in, b.String())
	}
	return in
}

func digits(r *rand.Rand, n int) string {
	var b strings.Builder
	for ; n > 0; n-- {
		b.WriteByte("00123456789"[r.Intn(11)])
	}
	return b.String()
}

// Of a huge exponent only the text is recorded: Go would write out gigabytes of digits.
func huge(in string) bool { return strings.Contains(in, "147483") || strings.Contains(in, "e100") }

func quantities() []quantityRow {
	rows := []quantityRow{}
	for _, in := range quantityInputs() {
		row := quantityRow{In: in}
		q, err := resource.ParseQuantity(in)
		if err != nil {
			row.Error = err.Error()
			rows = append(rows, row)
			continue
		}
		row.Out, row.Format = q.String(), string(q.Format)
		fresh := q.DeepCopy()
		fresh.Neg() // forgets the spelling
		fresh.Neg()
		row.Canonical = fresh.String()
		if !huge(in) {
			row.Value, row.Milli = fresh.Value(), fresh.MilliValue()
			row.Plain = fresh.AsDec().String()
		}
		rows = append(rows, row)
	}
	return rows
}

type arithmeticRow struct {
	A   string `json:"a"`
	B   string `json:"b"`
	Sum string `json:"sum"`
	Dif string `json:"difference"`
	Cmp int    `json:"cmp"`
	Tri string `json:"threeTimesA"`
}

func arithmetic() []arithmeticRow {
	operands := []string{"0", "1", "-1", "100m", "1500m", "1Ki", "1Gi", "1536Mi", "0.1Ki", "1n", "999999999n", "9223372036854775807", "-9223372036854775807", "8Ei",
		"1E", "12345678901234567890", "1.123456789", "1e3", "5e-7", "1000E", "0Ki", "64Gi", "3800m"}
	rows := []arithmeticRow{}
	for _, a := range operands {
		for _, b := range operands {
			x, y := resource.MustParse(a), resource.MustParse(b)
			sum, dif, tri := x.DeepCopy(), x.DeepCopy(), x.DeepCopy()
			sum.Add(y)
			dif.Sub(y)
			tri.Mul(3)
			rows = append(rows, arithmeticRow{A: a, B: b, Sum: sum.String(), Dif: dif.String(), Cmp: x.Cmp(y), Tri: tri.String()})
		}
	}
	return rows
}

type selectorRow struct {
	In      string                `json:"in,omitempty"`
	Object  *metav1.LabelSelector `json:"object,omitempty"`
	Error   string                `json:"error,omitempty"`
	Out     string                `json:"out,omitempty"`
	Matches []int                 `json:"matches,omitempty"`
	Sets    []map[string]string   `json:"sets,omitempty"`
}

var labelSets = []map[string]string{
	{}, {"a": "b"}, {"a": ""}, {"a": "c", "e": "x"}, {"x": "5"}, {"x": "12"}, {"x": "y"}, {"in": "notin"}, {"e": "y", "c": "d"}, {"h": "", "f": "z"},
	{"a": "b", "c": "e", "e": "x", "f": "q", "g": "1"}, {"example.com/name": "v"},
}

func selectors() []selectorRow {
	rows := []selectorRow{{Sets: labelSets}}
	add := func(row selectorRow, s labels.Selector, err error) {
		if err != nil {
			row.Error = err.Error()
		} else {
			row.Out, row.Matches = s.String(), []int{}
			for i, set := range labelSets {
				if s.Matches(labels.Set(set)) {
					row.Matches = append(row.Matches, i)
				}
			}
		}
		rows = append(rows, row)
	}
	long := strings.Repeat("a", 64)
	for _, in := range []string{
		"", " ", "a", "!a", "a=b", "a==b", "a!=b", "a in (b)", "a in (b,c)", "a notin (b)", "a=b,c!=d,e in (x,y),f notin (z),g,!h", "a=", "a==", "a!=", "a in ()", "a in (,)", "a in (,b)",
		"a in (b,)", "a in (b,,c)", "a in (in,notin)", "in", "notin", "in in (in)", "in=notin", "a>1", "x>5", "x<12", "x>4", "x>y", "x<", "a in", "a in b", "a in (b", "a in (b c)", "a in b)", "a in (",
		"a notin", "a,,b", ",a", "a,", "a b", "a!b", "!", "!!a", "!a=b", "=b", "a=b=c", "a=(b)", "a in (b=c)", "a===b", "a=!b", "a=>b", "a><b", "()", ")", "a)", "a(", "a=b,", "a=b c=d", " a = b ", "a\t=\nb",
		"a=b,a=c", "z=1,a=1,m=1", "a..b", "-a", "a-", "a/b", "/a", "a/", "a/b/c", "A.B/c", "example.com/name", "example.com/name=v", "a=" + long, long, "a=b!", "a=b@", "a in (b@)", "a in (b@,c$)",
		"x>1,x<100", "x>1.5", "x>-1", "x>+1", "a in (c,b,a)", "a=\"b\"", "a=ü", "ü", "a=b\x00c", "x gt 5", "a exists", "a=b,!", "a in (b)c", "a in ((b))", "!in", "notin=in", "a=in", "a in(b)", "a notin(b,c)",
	} {
		s, err := labels.Parse(in)
		add(selectorRow{In: in}, s, err)
	}
	for _, in := range []string{
		`{}`, `{"matchLabels":{}}`, `{"matchLabels":{"a":"b"}}`, `{"matchLabels":{"a":"b","c":"e"}}`, `{"matchLabels":{"a":""}}`, `{"matchLabels":{"a b":"c"}}`, `{"matchLabels":{"a":"b@"}}`,
		`{"matchExpressions":[{"key":"a","operator":"In","values":["b","c"]}]}`, `{"matchExpressions":[{"key":"a","operator":"NotIn","values":["b"]}]}`,
		`{"matchExpressions":[{"key":"a","operator":"Exists"}]}`, `{"matchExpressions":[{"key":"a","operator":"DoesNotExist"}]}`, `{"matchExpressions":[{"key":"a","operator":"In"}]}`,
		`{"matchExpressions":[{"key":"a","operator":"In","values":[]}]}`, `{"matchExpressions":[{"key":"a","operator":"Exists","values":["b"]}]}`, `{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}]}`,
		`{"matchExpressions":[{"key":"a","operator":"","values":["1"]}]}`, `{"matchExpressions":[{"key":"-","operator":"In","values":["b@","c@"]}]}`,
		`{"matchLabels":{"z":"1"},"matchExpressions":[{"key":"a","operator":"Exists"}]}`,
	} {
		object := &metav1.LabelSelector{}
		if err := json.Unmarshal([]byte(in), object); err != nil {
			panic(err)
		}
		s, err := metav1.LabelSelectorAsSelector(object)
		add(selectorRow{Object: object}, s, err)
	}
	return rows
}

type nameRow struct {
	In        string   `json:"in"`
	Label     []string `json:"dns1123Label"`
	Subdomain []string `json:"dns1123Subdomain"`
	Label1035 []string `json:"dns1035Label"`
	Qualified []string `json:"qualifiedName"`
	Value     []string `json:"labelValue"`
}

func nameChecks() []nameRow {
	in := []string{"", "a", "A", "0", "-", ".", "_", "a-b", "a.b", "a..b", "-a", "a-", "a_b", "a b", "a/b", "a/b/c", "/a", "a/", "/", "//", "example.com/a", "Example.com/a", "example.com/-a", "ex_ample.com/a", "a.b.c/d_e.f",
		"1abc", "ABC", "aBc", "my.name", "a\n", "ü", "a.-b", "a.b-", ".a", "a.", "12345", "true", "*.a", "a:b", "$", "a\u0000b"}
	for _, n := range []int{63, 64, 253, 254, 316} {
		in = append(in, strings.Repeat("a", n), "x.y/"+strings.Repeat("b", n), strings.Repeat("c", n)+"/d", strings.Repeat("a.", n/2)+"a", strings.Repeat("A", n))
	}
	rows := []nameRow{}
	list := func(l []string) []string {
		if l == nil {
			return []string{}
		}
		return l
	}
	for _, s := range in {
		rows = append(rows, nameRow{In: s, Label: list(validation.IsDNS1123Label(s)), Subdomain: list(validation.IsDNS1123Subdomain(s)), Label1035: list(validation.IsDNS1035Label(s)),
			Qualified: list(validation.IsQualifiedName(s)), Value: list(validation.IsValidLabelValue(s))})
	}
	return rows
}
