/* What the JSON scanner takes and what it refuses, one line a case: every kind of case that the
 * public conformance suites know, and the limits of core/base/json.h. */
#include "tests/support/test.h"

#include "core/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct json_case {
    const char *text;
    size_t length;
    const char *note;
} json_case;

/* sizeof keeps NUL bytes inside a text. */
#define CASE(text, note)                                                                           \
    { text, sizeof(text) - 1, note }

static const json_case accepted[] = {
    /* scalars at the top */
    CASE("null", "null"),
    CASE("true", "true"),
    CASE("false", "false"),
    CASE("7", "lone digit"),
    CASE("-0.5e-1", "lone number"),
    CASE("\"\"", "lone empty string"),
    CASE(" \t\r\n42 \t\r\n", "white space of all four kinds around"),
    /* structure */
    CASE("[]", "empty array"),
    CASE("{}", "empty object"),
    CASE("[ ]", "array of a blank"),
    CASE("{\n}", "object of a line end"),
    CASE("[[]]", "array in array"),
    CASE("[{}]", "object in array"),
    CASE("{\"a\":[]}", "array in object"),
    CASE("{\"a\":{\"a\":{\"a\":1}}}", "same key at other depths"),
    CASE("[1,2,3]", "three numbers"),
    CASE("[1 , 2\t,\n3]", "blanks around commas"),
    CASE("[1]\n", "line end behind"),
    CASE("[null,true,false]", "words"),
    CASE("{\"a\" : 1 , \"b\" : 2}", "blanks around colons"),
    CASE("{\"a\":null,\"b\":true}", "words in an object"),
    CASE("{\"\":0}", "empty key"),
    CASE("{\"a\":1,\"A\":2}", "keys differ by case"),
    CASE("{\"a\":1,\"a \":2}", "keys differ by a blank"),
    CASE("{\"a\\u0000b\":1,\"a\\u0000c\":2}", "keys differ behind an escaped NUL"),
    CASE("{\"a\\u0000\":1,\"a\":2}", "escaped NUL at the end of a key"),
    CASE("{\"x\\u0022y\":0}", "escaped quote in a key"),
    CASE("{\"\\u00e9\":1,\"e\":2}", "escaped letter in a key"),
    CASE("{\"max\":9.9e99,\"min\":-9.9e-99}", "numbers in an object"),
    CASE("[[1,[2,[3,[4]]]]]", "nested arrays"),
    CASE("[\"a\",\"a\",\"a\"]", "equal strings in an array"),
    /* numbers */
    CASE("[0]", "zero"),
    CASE("[-0]", "minus zero"),
    CASE("[-1]", "negative"),
    CASE("[0.5]", "fraction"),
    CASE("[-0.0]", "negative zero fraction"),
    CASE("[10]", "ten"),
    CASE("[1e5]", "exponent"),
    CASE("[1E5]", "capital exponent"),
    CASE("[1e+5]", "signed exponent"),
    CASE("[1E-5]", "negative exponent"),
    CASE("[0e0]", "zero to the zero"),
    CASE("[0e+01]", "exponent with a leading zero"),
    CASE("[1.000]", "trailing zeros"),
    CASE("[1.5e10]", "fraction and exponent"),
    CASE("[123456789012345678901234567890]", "beyond 64 bits"),
    CASE("[-123456789012345678901234567890.123456789]", "many digits on both sides"),
    CASE("[0.00000000000000000000000000000000000000000000000000000000000000000000000000000001]",
         "more digits than cJSON's buffer"),
    CASE("[11111111111111111111111111111111111111111111111111111111111111111111111111111111]",
         "eighty digits"),
    CASE("[1.7976931348623157e308]", "largest double"),
    CASE("[5e-324]", "smallest double"),
    CASE("[1e-400]", "underflow to zero"),
    CASE("[ 4]", "blank in front of a number"),
    CASE("[4 ]", "blank behind a number"),
    /* strings and escapes */
    CASE("[\"\"]", "empty string"),
    CASE("[\"plain\"]", "letters"),
    CASE("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]", "all short escapes"),
    CASE("[\"\\u0041\"]", "escaped letter"),
    CASE("[\"\\u00e9\\u00E9\"]", "hex digits of both cases"),
    CASE("[\"\\u0000\"]", "escaped NUL"),
    CASE("[\"\\u001f\\u007f\"]", "escaped control characters"),
    CASE("[\"\\u2028\\u2029\"]", "escaped line separators"),
    CASE("[\"\\uD834\\uDD1E\"]", "surrogate pair"),
    CASE("[\"\\ud800\\udc00\"]", "lowest surrogate pair"),
    CASE("[\"\\uDBFF\\uDFFF\"]", "highest surrogate pair"),
    CASE("[\"x\\uD834\\uDD1Ey\\uD834\\uDD1E\"]", "two surrogate pairs"),
    CASE("[\"\\uFFFF\\uFDD0\"]", "escaped non-characters"),
    CASE("[\"\\\\u0041\"]", "escaped backslash in front of u"),
    CASE("[\"\\\\\"]", "escaped backslash at the end"),
    CASE("[\"\x7f\"]", "raw delete"),
    CASE("[\"a/b\"]", "raw slash"),
    CASE("[\"'\"]", "single quote inside"),
    CASE("[\"/* no comment */ // here\"]", "comment marks inside a string"),
    CASE("[\"[{,:}]\"]", "brackets inside a string"),
    /* UTF-8 */
    CASE("[\"\xc3\xa9\"]", "two bytes"),
    CASE("[\"\xc2\x80\xdf\xbf\"]", "limits of two bytes"),
    CASE("[\"\xe0\xa0\x80\xef\xbf\xbf\"]", "limits of three bytes"),
    CASE("[\"\xed\x9f\xbf\xee\x80\x80\"]", "around the surrogates"),
    CASE("[\"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\"]", "limits of four bytes"),
    CASE("[\"\xe2\x80\xa8\xe2\x80\xa9\"]", "raw line separators"),
    CASE("[\"\xef\xbb\xbf\"]", "byte order mark inside a string"),
    CASE("{\"\xe6\xbc\xa2\":\"\xf0\x9d\x84\x9e\"}", "key and value beyond ASCII"),
};

static const json_case refused[] = {
    /* nothing, or not enough */
    CASE("", "empty text"),
    CASE(" ", "only a blank"),
    CASE("\n\n", "only line ends"),
    CASE("[", "open array"),
    CASE("{", "open object"),
    CASE("[1", "array cut behind a value"),
    CASE("[1,", "array cut behind a comma"),
    CASE("[[]", "inner array closed, outer open"),
    CASE("{\"a\"", "object cut behind a key"),
    CASE("{\"a\":", "object cut behind a colon"),
    CASE("{\"a\":1", "object cut behind a value"),
    CASE("{\"a\":1,", "object cut behind a comma"),
    CASE("\"", "lone quote"),
    CASE("\"abc", "string cut"),
    CASE("[\"a\\", "string cut in an escape"),
    CASE("[\"\\u00", "string cut in a \\u escape"),
    CASE("[\"\\uD834\\uDD", "string cut in a low surrogate"),
    CASE("nul", "cut word"),
    CASE("[tru]", "cut word in an array"),
    CASE("-", "lone minus"),
    CASE("[\"a", "string cut in an array"),
    CASE("[fals", "word cut by the end"),
    /* too much */
    CASE("1 2", "two values"),
    CASE("[] []", "two arrays"),
    CASE("{}{}", "two objects"),
    CASE("[1]x", "letter behind"),
    CASE("{\"a\":1}#", "hash behind"),
    CASE("{\"a\":1}/**/", "comment behind"),
    CASE("{\"a\":1}//", "line comment behind"),
    CASE("[]]", "one bracket too many"),
    CASE("{}}", "one brace too many"),
    CASE("nulll", "word too long"),
    CASE("truefalse", "two words"),
    CASE("1]", "bracket behind a number"),
    CASE("\"a\"\"b\"", "two strings"),
    CASE("[1]\0", "NUL behind"),
    CASE("{}\x1a", "control byte behind"),
    /* array punctuation */
    CASE("[,]", "lone comma"),
    CASE("[,1]", "comma in front"),
    CASE("[1,]", "comma behind"),
    CASE("[1,,2]", "two commas"),
    CASE("[1 2]", "no comma"),
    CASE("[1:2]", "colon in an array"),
    CASE("[1;2]", "semicolon"),
    CASE("[\"a\":1]", "member in an array"),
    CASE("[1}", "wrong closing bracket"),
    CASE("[\"a\",\n4\n,1,", "cut over several lines"),
    CASE("]", "closing bracket alone"),
    CASE("[3[4]]", "array behind a number"),
    CASE("[\"\"x]", "letter behind a string"),
    CASE("[*]", "star"),
    CASE("[\"a\" \"b\"]", "two strings without a comma"),
    CASE("[\x0c]", "form feed is not white space"),
    CASE("[\x0b"
         "1]",
         "vertical tab is not white space"),
    CASE("[\xc2\xa0]", "no-break space is not white space"),
    CASE("[\xe2\x81\xa0]", "word joiner is not white space"),
    CASE("<.>", "angle brackets"),
    CASE("[<null>]", "angle brackets in an array"),
    /* object punctuation */
    CASE("{,}", "lone comma in an object"),
    CASE("{\"a\":1,}", "comma behind a member"),
    CASE("{\"a\":1,,\"b\":2}", "two commas in an object"),
    CASE("{\"a\" 1}", "no colon"),
    CASE("{\"a\"::1}", "two colons"),
    CASE("{\"a\",1}", "comma for a colon"),
    CASE("{\"a\":}", "no value"),
    CASE("{\"a\"}", "key alone"),
    CASE("{:1}", "no key"),
    CASE("{a:1}", "bare key"),
    CASE("{'a':1}", "single quotes"),
    CASE("{1:1}", "number as a key"),
    CASE("{null:null}", "word as a key"),
    CASE("{[]:1}", "array as a key"),
    CASE("{\"a\":1]", "wrong closing brace"),
    CASE("{\"a\":1 \"b\":2}", "members without a comma"),
    CASE("{\"a\":1,\"b\"}", "second key alone"),
    CASE("{\"a\":\"b\"/**/}", "comment inside"),
    CASE("{\"a\":\"a\" 123}", "number behind a value"),
    CASE("{\"a\"=1}", "equals sign"),
    CASE("}", "closing brace alone"),
    CASE("{\"a\":1,\"a\":2}", "key twice"),
    CASE("{\"a\":1,\"a\":1}", "same member twice"),
    CASE("{\"a\":1,\"\\u0061\":2}", "key twice, once escaped"),
    CASE("[{\"x\":{\"k\":0,\"l\":1,\"k\":2}}]", "key twice in an inner object"),
    CASE("{\"\":1,\"\":2}", "empty key twice"),
    CASE("{\"a\\u0000\":1,\"a\\u0000\":2}", "key with NUL twice"),
    /* words */
    CASE("True", "capital word"),
    CASE("[NULL]", "capital null"),
    CASE("[nan]", "nan"),
    CASE("[NaN]", "NaN"),
    CASE("[inf]", "inf"),
    CASE("[Infinity]", "Infinity"),
    CASE("[-Infinity]", "minus Infinity"),
    CASE("[undefined]", "undefined"),
    CASE("abc", "letters"),
    CASE("[a", "letter in an array"),
    CASE("\xc3\xa5", "letter beyond ASCII"),
    /* numbers */
    CASE("[01]", "leading zero"),
    CASE("[00]", "two zeros"),
    CASE("[-01]", "negative with a leading zero"),
    CASE("[-00.5]", "fraction with two zeros"),
    CASE("[+1]", "plus sign"),
    CASE("[++1]", "two plus signs"),
    CASE("[--1]", "two minus signs"),
    CASE("[-]", "minus alone"),
    CASE("[- 1]", "blank behind minus"),
    CASE("[-a]", "letter behind minus"),
    CASE("[-.5]", "no digit in front of the point, negative"),
    CASE("[.5]", "no digit in front of the point"),
    CASE("[1.]", "no digit behind the point"),
    CASE("[0.e1]", "exponent behind a point"),
    CASE("[1.2.3]", "two points"),
    CASE("[1..2]", "two points in a row"),
    CASE("[1e]", "no exponent"),
    CASE("[1E+]", "no digit behind the exponent's sign"),
    CASE("[1e5.5]", "fraction in the exponent"),
    CASE("[1e5e5]", "two exponents"),
    CASE("[1eE2]", "two exponent letters"),
    CASE("[1e+-2]", "two exponent signs"),
    CASE("[0x10]", "hexadecimal"),
    CASE("[0x]", "hexadecimal mark alone"),
    CASE("[1_000]", "digit groups"),
    CASE("[1 000]", "blank between digits"),
    CASE("[1,5e]", "second number cut"),
    CASE("[1a]", "letter behind a digit"),
    CASE("[0b1]", "binary"),
    CASE("[1f]", "C suffix"),
    CASE("[1+2]", "sum"),
    CASE("[0.1.2]", "version"),
    CASE("[\xef\xbc\x91]", "full-width digit"),
    CASE("[1\xc3\xa5]", "letter beyond ASCII behind a digit"),
    CASE("[1e999]", "overflow"),
    CASE("[-1e999]", "negative overflow"),
    CASE("{\"a\":[1,1e309]}", "just beyond the largest double"),
    /* strings and escapes */
    CASE("['a']", "single-quoted string"),
    CASE("[`a`]", "back quotes"),
    CASE("[\xe2\x80\x9c"
         "a\xe2\x80\x9d]",
         "curly quotes"),
    CASE("[\"a\nb\"]", "raw line end"),
    CASE("[\"a\rb\"]", "raw carriage return"),
    CASE("[\"a\tb\"]", "raw tab"),
    CASE("[\"a\0b\"]", "raw NUL"),
    CASE("[\"a\x01"
         "b\"]",
         "raw control character"),
    CASE("[\"a\x1f"
         "b\"]",
         "highest raw control character"),
    CASE("{\"a\nb\":1}", "raw line end in a key"),
    CASE("[\"\\a\"]", "unknown escape a"),
    CASE("[\"\\x41\"]", "unknown escape x"),
    CASE("[\"\\'\"]", "escaped single quote"),
    CASE("[\"\\0\"]", "escape zero"),
    CASE("[\"\\U0041\"]", "capital U"),
    CASE("[\"\\\n\"]", "escaped line end"),
    CASE("[\"\\ \"]", "escaped blank"),
    CASE("[\"\\\0\"]", "escaped raw NUL"),
    CASE("[\"\\\xc3\xa9\"]", "escaped letter beyond ASCII"),
    CASE("[\"\\\"]", "closing quote escaped"),
    CASE("[\"\\\\\\\"]", "closing quote escaped behind a backslash"),
    CASE("[\"\\u\"]", "no hex digits"),
    CASE("[\"\\u1\"]", "one hex digit"),
    CASE("[\"\\u12\"]", "two hex digits"),
    CASE("[\"\\u123\"]", "three hex digits"),
    CASE("[\"\\u12g4\"]", "not a hex digit"),
    CASE("[\"\\u+123\"]", "sign for a hex digit"),
    CASE("[\"\\u 123\"]", "blank for a hex digit"),
    CASE("[\\n]", "escape outside a string"),
    CASE("[\\u0020\"a\"]", "\\u escape outside a string"),
    CASE("[\"a\"\\u0020]", "\\u escape behind a string"),
    /* surrogates */
    CASE("[\"\\uD834\"]", "high surrogate alone"),
    CASE("[\"\\uD834x\"]", "high surrogate and a letter"),
    CASE("[\"\\uD834\\n\"]", "high surrogate and a short escape"),
    CASE("[\"\\uD834\\u0041\"]", "high surrogate and a letter's escape"),
    CASE("[\"\\uD834\\uD834\"]", "two high surrogates"),
    CASE("[\"\\uD834\\uD834\\uDD1E\"]", "two high surrogates and a low one"),
    CASE("[\"\\uDD1E\"]", "low surrogate alone"),
    CASE("[\"\\uDD1E\\uD834\"]", "surrogates in the wrong order"),
    CASE("[\"\\uD834\\uDDxx\"]", "low surrogate with bad digits"),
    CASE("{\"\\uD834\":1}", "high surrogate alone in a key"),
    /* UTF-8 */
    CASE("[\"\x80\"]", "continuation byte alone"),
    CASE("[\"\xbf\"]", "highest continuation byte alone"),
    CASE("[\"\xc3\"]", "two-byte sequence cut"),
    CASE("[\"\xc3"
         "a\"]",
         "two-byte sequence broken"),
    CASE("[\"\xe2\x82\"]", "three-byte sequence cut"),
    CASE("[\"\xf0\x9d\x84\"]", "four-byte sequence cut"),
    CASE("[\"\xf0\x9d\x84", "text cut inside a sequence"),
    CASE("[\"\xc0\xaf\"]", "overlong slash"),
    CASE("[\"\xc0\x80\"]", "overlong NUL"),
    CASE("[\"\xc1\xbf\"]", "overlong, highest two-byte form"),
    CASE("[\"\xe0\x80\xaf\"]", "overlong, three bytes"),
    CASE("[\"\xe0\x9f\xbf\"]", "overlong, highest three-byte form"),
    CASE("[\"\xf0\x80\x80\xaf\"]", "overlong, four bytes"),
    CASE("[\"\xf0\x8f\xbf\xbf\"]", "overlong, highest four-byte form"),
    CASE("[\"\xed\xa0\x80\"]", "raw high surrogate"),
    CASE("[\"\xed\xbf\xbf\"]", "raw low surrogate"),
    CASE("[\"\xf4\x90\x80\x80\"]", "beyond U+10FFFF"),
    CASE("[\"\xf5\x80\x80\x80\"]", "byte F5"),
    CASE("[\"\xf8\x88\x80\x80\x80\"]", "five bytes"),
    CASE("[\"\xfc\x83\xbf\xbf\xbf\xbf\"]", "six bytes"),
    CASE("[\"\xfe\"]", "byte FE"),
    CASE("[\"\xff\"]", "byte FF"),
    CASE("[\"\xe9\"]", "Latin-1 letter"),
    CASE("\xe5", "Latin-1 letter alone"),
    CASE("{\"\xb9\":1}", "bad byte in a key"),
    CASE("[1\xe5]", "bad byte behind a number"),
    CASE("[\"\\u\xe5\"]", "bad byte in an escape"),
    /* byte order marks and other encodings */
    CASE("\xef\xbb\xbf", "byte order mark alone"),
    CASE("\xef\xbb\xbf{}", "byte order mark in front"),
    CASE("\xef\xbb{}", "cut byte order mark"),
    CASE("[\xef\xbb\xbf]", "byte order mark inside"),
    CASE("\xff\xfe[\0]\0", "UTF-16 little endian with mark"),
    CASE("\xfe\xff\0[\0]", "UTF-16 big endian with mark"),
    CASE("[\0\"\0\xe9\0\"\0]\0", "UTF-16 without mark"),
    CASE("\0", "NUL alone"),
    CASE("[\0]", "NUL in an array"),
    CASE("123\0", "NUL behind a number"),
    CASE("\x7f"
         "ELF\x02\x01\x01",
         "binary"),
    CASE("\x1f\x8b\x08", "compressed"),
};

static void texts_of_the_grammar_are_accepted(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        mf_json *doc = NULL;
        mf_err e;
        mf_err_clear(&e);
        if (mf_json_parse("t", accepted[i].text, accepted[i].length, &doc, &e) != MF_OK) {
            fail_msg("refused: %s: %s", accepted[i].note, e.text);
        }
        assert_non_null(doc);
        mf_json_destroy(doc);
    }
}

static void texts_outside_the_grammar_are_refused_with_a_position(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        mf_json *doc = NULL;
        mf_err e;
        mf_err_clear(&e);
        mf_status st = mf_json_parse("t", refused[i].text, refused[i].length, &doc, &e);
        if (st != MF_INPUT || doc != NULL) {
            mf_json_destroy(doc);
            fail_msg("not refused: %s", refused[i].note);
        }
        int line = 0, column = 0, used = 0;
        if (sscanf(e.text, "t:%d:%d: %n", &line, &column, &used) != 2 || used == 0 || line < 1 ||
            column < 1 || strchr(e.text, '\n') != NULL) {
            fail_msg("%s: no position in: %s", refused[i].note, e.text);
        }
    }
}

/* The same bytes in a block of exactly their size, so that a sanitizer sees any read past the end;
 * every prefix of an accepted text is either accepted or refused, never a crash. */
static void every_prefix_is_survived(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        for (size_t length = 0; length <= accepted[i].length; length++) {
            char *copy = malloc(length + (length == 0));
            assert_non_null(copy);
            memcpy(copy, accepted[i].text, length);
            mf_json *doc = NULL;
            mf_status st = mf_json_parse("t", copy, length, &doc, NULL);
            assert_true(st == MF_OK || st == MF_INPUT);
            mf_json_destroy(doc);
            free(copy);
        }
    }
}

static mf_status parse_nested(size_t depth, char open, char close) {
    char text[2 * 1000];
    assert_at_most(2 * depth, sizeof text);
    memset(text, open, depth);
    memset(text + depth, close, depth);
    mf_json *doc = NULL;
    mf_status st = mf_json_parse("t", text, 2 * depth, &doc, NULL);
    mf_json_destroy(doc);
    return st;
}

static void nesting_ends_at_the_limit(void **state) {
    (void)state;
    assert_int_equal(parse_nested(MF_JSON_MAX_DEPTH, '[', ']'), MF_OK);
    assert_int_equal(parse_nested(MF_JSON_MAX_DEPTH + 1, '[', ']'), MF_INPUT);
    assert_int_equal(parse_nested(1000, '[', ']'), MF_INPUT);
}

static void an_endless_opening_is_refused(void **state) {
    (void)state;
    size_t length = 1u << 20;
    char *text = malloc(length);
    assert_non_null(text);
    mf_json *doc = NULL;
    memset(text, '[', length);
    assert_int_equal(mf_json_parse("t", text, length, &doc, NULL), MF_INPUT);
    for (size_t i = 0; i + 5 <= length; i += 5) {
        memcpy(text + i, "{\"a\":", 5);
    }
    assert_int_equal(mf_json_parse("t", text, length, &doc, NULL), MF_INPUT);
    free(text);
}

static void a_text_beyond_the_size_limit_is_refused_unread(void **state) {
    (void)state;
    mf_json *doc = NULL;
    mf_err e;
    assert_int_equal(mf_json_parse("t", "[]", (size_t)MF_JSON_MAX_BYTES + 1, &doc, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "larger than"));
}

static void a_text_with_too_many_values_is_refused(void **state) {
    (void)state;
    size_t length = 2 * ((size_t)MF_JSON_MAX_VALUES + 2);
    char *text = malloc(length);
    assert_non_null(text);
    for (size_t i = 0; i < length; i += 2) {
        memcpy(text + i, "1,", 2);
    }
    text[0] = '[';
    text[1] = ' ';
    text[length - 1] = ']';
    mf_json *doc = NULL;
    mf_err e;
    assert_int_equal(mf_json_parse("t", text, length, &doc, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "too many values"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_the_grammar_are_accepted),
        cmocka_unit_test(texts_outside_the_grammar_are_refused_with_a_position),
        cmocka_unit_test(every_prefix_is_survived),
        cmocka_unit_test(nesting_ends_at_the_limit),
        cmocka_unit_test(an_endless_opening_is_refused),
        cmocka_unit_test(a_text_beyond_the_size_limit_is_refused_unread),
        cmocka_unit_test(a_text_with_too_many_values_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
